"""What the checks of runs on several processes found, from their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import distributed_equality

from readme_blocks.checks import commit_of, newest, remained
from readme_blocks.evidence import Evidence
from readme_blocks.text import paragraphs, plural, sentences, table, tasks

Run = Mapping[str, Any]  # what the check found for a task and a norm


def equality(evidence: Evidence) -> str:
    """How runs on several processes ended."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        runs, sizes = results["runs"], results["sizes"]
        errors = [line for run in runs for lines in run["errors"].values() for line in lines]
        norms = " and ".join(dict.fromkeys(f"`{run['norm']}`" for run in runs))
        models = {run["task"]: " ".join(run["model"]) for run in runs}
        return paragraphs(
            sentences(
                f"At commit {commit_of(content)}, runs of {results['steps']} steps with {norms} were done for "
                f"{tasks(models)}, on {', '.join(map(str, sizes))} processes, and once more killed at every tenth step "
                f"and continued with another number. {remained(errors)} in parameters, buffers, optimiser and metrics.",
                _kills(runs),
                "All models are far smaller than those of `scale=demo`:",
            ),
            "\n".join(f"- `{task}`: `{words}`" for task, words in models.items()),
            "Relative differences of the training loss from that of one process, in means over three steps:",
            table([_differences(run) for run in runs]),
            f"With `reduce=fast`, {_over(runs, 'fast')} of {len(runs)} exceed "
            f"{distributed_equality.LARGEST_LOSS_DIFFERENCE}, with changed weights {_over(runs, 'changed')}.",
        )

    command = "python scripts/distributed_equality.py --results results"
    return newest(evidence, distributed_equality.NAME, command, describe)


def hang(evidence: Evidence) -> str:
    """How a run ended of which a process did not answer."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        return (
            f"At commit {commit_of(content)}, one of two processes was stopped without ending it (SIGSTOP). The run "
            f"ended after {results['seconds']:.0f} s, with its last complete step saved, and was continued by one "
            f"process. {remained(results['errors'])} to an undisturbed run."
        )

    command = "python scripts/distributed_equality.py --hang --results results"
    return newest(evidence, distributed_equality.HANG, command, describe)


def _kills(runs: list[Run]) -> str:
    kills = [kill for run in runs for kill in run["kills"]]
    of_first = sum(kill["rank"] == 0 for kill in kills)
    longest = max(kill["seconds"] for kill in kills)
    return (
        f"There were {plural(len(kills), 'kill')}, {of_first or 'none'} of them of process 0; all processes had ended "
        f"at most {longest:.0f} s later."
    )


def _over(runs: list[Run], kind: str) -> int:
    limit = distributed_equality.LARGEST_LOSS_DIFFERENCE
    return sum(max(run[f"{kind}_loss_differences"], default=0.0) > limit for run in runs)


def _differences(run: Run) -> dict[str, str]:
    fast, changed = run["fast_loss_differences"], run["changed_loss_differences"]
    return {
        "task": f"`{run['task']}`",
        "norm": f"`{run['norm']}`",
        "`reduce=fast`, first three steps": _largest(fast[:1]),
        "`reduce=fast`, largest of all": _largest(fast),
        "weights changed by a unit in their last place, largest of all": _largest(changed),
    }


def _largest(differences: list[float]) -> str:
    """Return "-" if nothing was measured."""
    return f"{max(differences):.0e}".replace("0e+00", "0") if differences else "-"
