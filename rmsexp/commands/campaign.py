"""``python -m rmsexp.campaign NAME``: do all runs that answer a question, and decide its claims; or make a table or a
figure of the paper.

    --plan     print the runs, what they take, and which are done; train nothing but trials of 20 steps
    --register write registered.json and end, so that it can be committed before the first run
    --jobs N   start N workers, by default on this machine; with hydra/launcher=submitit_slurm (or ray) elsewhere

NAME is a file configs/campaign/NAME.yaml, which says what is asked, tuned, trained and claimed (docs/campaigns.md). The
same command again continues. Every process that runs it is a worker: start as many as you like, on one machine or on
several that share the folder of results; no two of them do the same run. A worker uses one thread unless threads=… is
set. Words KEY=VALUE change the campaign (norms=[ln,rms], margin=1, tune.…, final.…) or all of its runs (task=cifar10,
data.root=…, results=…).

    check FOLDER...  recompute the verdicts of campaigns that somebody sends, from their records alone

NAME is also the name of a table or figure of the paper, such as table2 or figure1, or paper for all of them. Then the
command does the runs and timings that are not among the records yet, and draws the paper's layout with our values and
the paper's (docs/paper.md). Words KEY=VALUE: scale=demo (or small, medium, paper), seeds=[0,1], timing.processes=6,
timing.budget=…, and options of all runs.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from rmsexp import config
from rmsexp.commands import launch
from rmsexp.config.words import overrides
from rmsexp.system import process
from rmsexp.system.command_line import REPORTED, Parser, ReportedError, entry_point, number, report, value_word
from rmsexp.system.lock import Lock, RunLockedError

if TYPE_CHECKING:
    from rmsexp.campaign.asked import Timing
    from rmsexp.campaign.items import Asked
    from rmsexp.campaign.question import Question

WORKER = "campaign_worker"  # the name of a worker's config in Hydra's ConfigStore
ON_THIS_MACHINE = ("joblib", "submitit_local")  # launchers of Hydra whose workers share the cores

# The config of a worker that a launcher of Hydra starts. name, words, config_dir: of the command line; of: the number
# of workers that share the machine's cores; worker: its number. A worker takes one run after the other by itself, so
# all have the same words but for the number.
VALUES: dict[str, Any] = {"name": "", "words": [], "config_dir": None, "of": 1, "worker": 0}
DEFAULTS = ["_self_", {"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
ConfigStore.instance().store(name=WORKER, node=VALUES | {"defaults": DEFAULTS})


@entry_point
def main(argv: Sequence[str]) -> int:
    arguments = _parse(argv)
    from rmsexp.campaign import items
    from rmsexp.commands import summary

    if arguments.name == "check":
        if arguments.plan or arguments.register or arguments.jobs > 1:
            raise config.ConfigError("check only reads records; leave out --plan, --register and --jobs")
        return summary.print_check([Path(word) for word in arguments.words], arguments.ours)
    with process.ending_on_signals():  # between runs; during a run the trainer handles signals, and saves the run first
        words = overrides(arguments.words, arguments.config_dir)
        of_hydra = [word for word in words if config.is_for_sweeps(word)]
        if lost := [word for word in of_hydra if word.lstrip("+").startswith("hydra.launcher.n_jobs=")]:
            raise config.ConfigError(f"{lost[0]} has no effect on a campaign; use --jobs N")
        words = [word for word in words if word not in of_hydra]
        asked = items.asked(arguments.name, words, arguments.config_dir)
        if arguments.register:
            if isinstance(asked, items.Items):
                raise config.ConfigError("only campaigns with claims are registered")
            print(f"registered  {asked.register()}")
            stored = asked.registered()
            if stored is not None and stored.changed is not None:
                raise ReportedError(
                    f"the campaign's file has changed since it was registered on {stored.date}: {stored.changed}; "
                    "restore it, or begin anew in another results folder"
                )
            return 0
        if arguments.plan:
            summary.print_plan(asked)
            return 0
        print(asked.title, flush=True)
        if not isinstance(asked, items.Items):
            _report_changes(asked)
        status = _start(asked, arguments, words, of_hydra) if of_hydra or arguments.jobs > 1 else _work(asked)
        if status < 128:
            if isinstance(asked, items.Items):
                summary.draw(asked)
            else:
                summary.print_verdicts(asked)
        return status


def _report_changes(asked: Question) -> None:
    """Say whose own code has changed since its runs. Raises: RefusedError if a norm's config has."""
    from rmsexp.work import runner

    for job in {job.norm: job for job, result in asked.update().results.items() if result.ended}.values():
        if notice := runner.changes(asked.composed(asked.words_of(job))):
            report(f"{job.norm}: {notice}; results=FOLDER begins anew")


def _start(asked: Asked, arguments: argparse.Namespace, words: Sequence[str], of_hydra: Sequence[str]) -> int:
    """Start workers by a launcher of Hydra and wait for them; return the exit status, 1 if runs or timings are left.

    ``of_hydra``: the words that choose and configure the launcher; none: the workers are processes of joblib.
    """
    launcher = next((word.partition("=")[2] for word in of_hydra if word.startswith("hydra/launcher=")), None)
    chosen = [*of_hydra] if launcher else [*of_hydra, "hydra/launcher=joblib"]
    if launcher in (None, "joblib"):
        chosen.append(f"hydra.launcher.n_jobs={arguments.jobs}")
    values = {
        "name": arguments.name,
        "words": list(words),
        "config_dir": arguments.config_dir,
        "of": arguments.jobs if launcher in (None, *ON_THIS_MACHINE) else 1,
        "hydra.sweep.dir": asked.results,
        "hydra.sweep.subdir": ".",
        "hydra.output_subdir": None,
    }
    words = [*(value_word(key, value) for key, value in values.items()), f"worker=range({arguments.jobs})"]
    status = launch.launch(_worker, ["-m", *chosen, *words], WORKER)
    return status or int(bool(asked.plan().left) or any(timing.is_left() for timing in asked.timings()))


def _worker(composed: DictConfig) -> None:
    """Do the work of a worker that Hydra has started with the keys of ``VALUES``."""
    from rmsexp.campaign import items

    launch.enter()
    with process.ending_on_signals(), suppress(SystemExit):  # which would end the workers that share this process
        try:
            asked = items.asked(composed.name, list(composed.words), composed.config_dir)
            _work(asked, composed.of, f"[{composed.worker + 1}] ")
        except REPORTED as error:
            report(error)
        except Exception:  # an error of this program; Hydra would report it as its own
            traceback.print_exc()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m rmsexp.campaign", description=__doc__)
    known = ", ".join([*config.options("campaign"), *sorted(config.options("item"), key=len), "paper"])
    parser.add_argument("name", metavar="NAME", help=f"one of {known}, or your own campaign")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_config_dir("a folder of your own configs, such as norms, tasks and campaigns")
    parser.add_argument("--plan", action="store_true", help="print runs and costs instead of training")
    parser.add_argument("--register", action="store_true", help="register the campaign's rules, and end")
    parser.add_argument("--ours", type=Path, default=Path("results/reference"), help="check: results to compare with")
    parser.add_argument("--jobs", type=number(int, 1, 256), default=1, metavar="N", help="number of workers to start")
    return parser.parse_intermixed_args(argv)


def _work(asked: Asked, of: int = 1, label: str = "") -> int:
    """Do runs that are left and, after them, the timings; return the exit status.

    ``of``: the number of workers that share this machine's cores. ``label``: stands before each line that is printed.
    """
    from rmsexp.work.worker import Worker

    def tell(line: str) -> None:
        print(f"{label}{line}", flush=True)

    worker, typed = Worker(asked, of, tell), ["python", "-m", "rmsexp.campaign", *asked.command()]
    signum = worker.work()
    failed = len(worker.failed)
    try:
        for timing in asked.timings() if signum is None and not failed else []:
            _measure(timing, tell, typed)
    except process.Interrupted as stop:
        signum = stop.signum
    except REPORTED as error:  # no claim depends on times
        report(error)
        return getattr(error, "exit_status", 1)
    if signum is not None:
        tell("stopped; repeat the command to continue")
        return 128 + signum
    if failed:
        report(f"{label}{failed} run{'s' if failed > 1 else ''} failed; repeat the command to try them again")
    return int(failed > 0)


def _measure(timing: Timing, tell: Callable[[str], None], typed: Sequence[str]) -> None:
    """Time the steps and write the record, unless another worker is doing so or has done so.

    If it is stopped or fails, the record has the processes that have measured, and the timing is left to the next
    command. ``typed``: the command line, for the record.

    Raises: Interrupted or ProcessError as :func:`rmsexp.measure.processes.record`.
    """
    from rmsexp.measure import processes
    from rmsexp.records.frames.timing_records import FILE

    with suppress(RunLockedError), Lock(timing.folder / ".timing.lock", timing.folder).held():
        if timing.is_left():
            processes.record(timing.jobs, timing.options, tell, typed, lambda folder: tell(f"timing  {folder / FILE}"))
