"""Trials of some steps, which say how long a run takes on this machine (:mod:`rmsexp.campaign.progress`)."""

import math
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from rmsexp import config
from rmsexp.campaign.asked import Asked
from rmsexp.campaign.progress import Planned, waited
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.system.command_line import ReportedError, report, value_word
from rmsexp.system.machine_lock import pause
from rmsexp.work import runner

TRIAL_STEPS = 20


def trial(asked: Asked, run: Planned) -> float:
    """Return the seconds of a whole run, from a trial of ``TRIAL_STEPS`` steps, which does not evaluate test splits.

    The trial is done in a hidden folder below that of the campaign, or of the items, which is removed afterwards.

    Raises: ReportedError if it fails; SystemExit if a signal stops it.
    """
    words = asked.words_of(run)
    whole = config.job(words, asked.config_dir).config
    own = [word for word in words if not word.lstrip("+~").startswith(("logger=", "logger."))]  # a trial is no run
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=asked.folder) as results:
        job = config.job([*own, *trial_words(whole), value_word("results", results)], asked.config_dir)
        pause(report)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            outcome = runner.execute(job, runner.Conditions(pauses=True))
        if outcome.signum is not None:
            raise SystemExit(128 + outcome.signum)
        if outcome.status == "failed":
            reason = str(outcome.error).partition(" (traceback in ")[0]  # which is removed with the trial
            raise ReportedError(f"the trial of {run.norm} failed: {reason}")
        return extrapolated(record.RunFolder(job.folder), whole)


def trial_words(whole: Any) -> list[str]:
    """Return the words of a trial of a run with this config.

    With a plan of evaluations, a trial has an evaluation of the first validation examples at half of its steps, and one
    of the whole split, too, at its end. Otherwise it has one before training and one at its end.

    A warm-up or a period too long for the trial's schedule would be refused; what a step costs does not depend on them.
    """
    words = [f"{key}={TRIAL_STEPS}" for key in ("max_steps", "log_every", "checkpoint_every")]
    if whole.evaluation is None:
        return [*words, f"eval_every={TRIAL_STEPS}"]
    short = [f"schedule.{key}=1" for key in ("warmup", "period") if getattr(whole.schedule, key, None)]
    return [*words, f"schedule.steps={TRIAL_STEPS // 2 * score.EVALUATIONS}", f"evaluation={score.PLANS[1]}", *short]


def extrapolated(files: record.RunFolder, whole: Any) -> float:
    """Return the seconds of a run with the config ``whole``, from the record of a trial; 0 if the trial diverged."""
    rows = files.read_metrics()[0] if files.metrics_path.exists() else []
    if not rows or rows[-1]["step"] < TRIAL_STEPS:
        return 0.0
    clock = rows[-1]["seconds"]
    training = (clock["data"] + clock["train"]) * whole.max_steps / TRIAL_STEPS
    if whole.evaluation is None:
        evaluation = (1 + math.ceil(whole.max_steps / whole.eval_every)) * clock["eval"] / 2
    else:
        interim = next(row["seconds"]["eval"] for row in rows if row["split"] == score.INTERIM)  # of the first of two
        evaluation = score.EVALUATIONS * interim + score.SCORED * max(0.0, clock["eval"] - 2 * interim)
    return float(clock["warmup"] + training + evaluation) / (1 + waited(files))
