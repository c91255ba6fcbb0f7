"""What the checks of runs on several processes found, from their records."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import distributed_equality
import forked_run

from readme_blocks.checks import commit_of, newest, remained
from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, paragraphs, plural, sentences, table, tasks

Run = Mapping[str, Any]  # what the check found for a task and a norm


def equality(evidence: Evidence) -> str:
    """How runs on several processes ended."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        runs, sizes = results["runs"], results["sizes"]
        lines = [line for run in runs for found in run["errors"].values() for line in found]
        errors = [line for line in lines if not line.startswith(distributed_equality.LOSS_DIFFERS)]  # in the table
        norms = " and ".join(dict.fromkeys(f"`{run['norm']}`" for run in runs))
        models = {run["task"]: " ".join(run["model"]) for run in runs}
        is_demo = results.get("scale") == "demo"  # older records have smaller models
        return paragraphs(
            sentences(
                f"At commit {commit_of(content)}, runs of {results['steps']} steps with {norms} were done for "
                f"{tasks(models)}, on {', '.join(map(str, sizes))} processes, and once more killed or stopped at every "
                f"tenth step and continued with another number. {remained(errors)} in parameters, buffers, optimiser "
                "and metrics.",
                _kills(runs),
                "These keys differ from `scale=demo`:" if is_demo else "All models are far smaller than the demo's:",
            ),
            "\n".join(f"- `{task}`: `{words}`" for task, words in models.items()),
            "Relative differences of the training loss. For one step, each step of the exact run is repeated with "
            "`reduce=fast`, and the loss of the next step is compared. For a run, means over three steps are compared "
            "with those of the run on one process:",
            table([_differences(run) for run in runs]),
            _over(runs),
        )

    command = "python scripts/distributed_equality.py --results results"
    return newest(evidence, distributed_equality.NAME, command, describe)


def hang(evidence: Evidence) -> str:
    """How a run ended of which a process did not answer."""

    def describe(content: Mapping[str, Any]) -> str:
        results, grace = content["results"], forked_run.GRACE_SECONDS
        seconds = results["seconds"]
        return (
            f"At commit {commit_of(content)}, one of two processes was stopped without ending it (SIGSTOP). The run "
            f"ended after {seconds:.0f} s: process 0 after {seconds - grace:.0f} s, with its last complete step saved, "
            f"and the stopped process {grace} s later, because this check, like torchrun, waits so long between "
            f"SIGTERM and SIGKILL. One process continued it. {remained(results['errors'])} to an undisturbed run."
        )

    command = "python scripts/distributed_equality.py --hang --results results"
    return newest(evidence, distributed_equality.HANG, command, describe)


def _kills(runs: list[Run]) -> str:
    """Return how often processes were killed and stopped, and what followed. Older records lack ``from_step``."""
    kills = [kill for run in runs for kill in run["kills"]]
    killed = [kill for kill in kills if kill["signum"] == signal.SIGKILL]
    of_first = sum(kill["rank"] == 0 for kill in killed)
    others = [kill for kill in killed if kill["rank"] > 0 and "from_step" in kill]
    longest = max(kill["seconds"] for kill in kills)
    return sentences(
        f"SIGKILL was sent {plural(len(killed), 'time')}, {of_first or 'none'} of them to process 0, and SIGTERM, "
        f"which stops all processes after the same step, {plural(len(kills) - len(killed), 'time')}. All processes had "
        f"ended at most {longest:.0f} s later.",
        f"After {sum(map(distributed_equality.continued_well, others))} of the {len(others)} SIGKILLs to other "
        "processes, the run continued from its last completed step."
        if others
        else "",
    )


def _over(runs: list[Run]) -> str:
    """Return in how many runs the largest difference exceeds the limit."""
    counts, limit = [], distributed_equality.LARGEST_LOSS_DIFFERENCE
    kinds = [
        ("fast_step", None, "after one step"),  # older records lack it
        ("fast", 1, "in the first three steps with `reduce=fast`"),
        ("fast", None, "in whole runs with `reduce=fast`"),
        ("changed", None, "with changed weights"),
    ]
    for kind, rows, where in kinds:
        measured = [run[key][:rows] for run in runs if run.get(key := f"{kind}_loss_differences")]
        if measured:
            counts.append(f"{sum(max(differences) > limit for differences in measured)} of {len(measured)} {where}")
    return f"Above {limit} are {listed(counts)}."


def _differences(run: Run) -> dict[str, str]:
    fast, changed = run["fast_loss_differences"], run["changed_loss_differences"]
    return {
        "task": f"`{run['task']}`",
        "norm": f"`{run['norm']}`",
        "one step with `reduce=fast`, largest of all": _largest(run.get("fast_step_loss_differences", [])),
        "run with `reduce=fast`, first three steps": _largest(fast[:1]),
        "run with `reduce=fast`, largest of all": _largest(fast),
        "run with weights changed by a unit in their last place, largest of all": _largest(changed),
    }


def _largest(differences: list[float]) -> str:
    """Return "-" if nothing was measured."""
    return f"{max(differences):.0e}".replace("0e+00", "0") if differences else "-"
