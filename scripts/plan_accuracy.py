"""Compare the cost that ``python -m rmsexp.campaign NAME --plan`` estimates with the cost of the campaign's runs.

    python scripts/plan_accuracy.py quality_cifar10 quality_rnnsearch data.root=~/data

For each stage of a campaign that has runs made on a machine like this one below results/reference/quality: the
uncontended seconds of these runs, and those that ``--plan`` estimates for the same runs when none is done, from a trial
of 20 steps of each norm. The records are copied to a temporary folder first. The record of this check
(check_record.py) has both for each norm and stage.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from check_record import Check, add_option, run

from rmsexp.campaign import plan, progress, question
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.work import cost

RECORDS = Path(__file__).parents[1] / "results/reference/quality"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="NAME|KEY=VALUE", help="campaigns, and overrides of their runs")
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of runs (results/reference/quality)")
    add_option(parser)
    arguments = parser.parse_args()
    names = [word for word in arguments.words if "=" not in word]
    words = [word for word in arguments.words if "=" in word]
    check = Check("plan_accuracy", arguments.results)
    with tempfile.TemporaryDirectory() as copy, check.measuring():
        shutil.copytree(arguments.records, copy, dirs_exist_ok=True)
        rows = [row for name in names for row in compared(question.read(name, [*words, f"results={copy}"]))]
    for row in rows:
        print("{campaign} {stage} {norm}: {runs} runs, planned {planned:.0f} s, took {took:.0f} s each".format(**row))
    check.write({"rows": rows})


def compared(asked: question.Question) -> list[dict[str, Any]]:
    """Return a row for each norm and stage with runs of this machine: seconds per run, as planned and as they took."""
    _, results = plan.update(asked)
    spent = {
        job: progress.cost(asked.results / job.folder).seconds
        for job, result in results.items()
        if result.status == "finished" and cost.is_from_this_machine(asked.results / job.folder)
    }
    runs = CampaignRuns(asked)
    planned = progress.seconds_left(spent, {}, {}, trial=lambda job: cost.trial(runs, job))
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in spent:
        groups.setdefault((job.stage, job.norm), []).append(job)
    return [
        {"campaign": asked.name, "stage": stage, "norm": norm, "runs": len(jobs)}
        | {"planned": _mean([planned[job] for job in jobs]), "took": _mean([spent[job] for job in jobs])}
        for (stage, norm), jobs in groups.items()
    ]


def _mean(values: Sequence[float | None]) -> float:
    return sum(value or 0.0 for value in values) / len(values)


if __name__ == "__main__":
    run(main)
