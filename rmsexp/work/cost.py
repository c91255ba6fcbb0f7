"""Trials of some steps, which say how long a run takes on this machine (:mod:`rmsexp.campaign.progress`)."""

import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from rmsexp import config
from rmsexp.campaign.items import Asked
from rmsexp.campaign.progress import Planned
from rmsexp.records import record
from rmsexp.system.command_line import inform, report, value_word
from rmsexp.system.machine_lock import pause
from rmsexp.work import runner

TRIAL_STEPS = 20


def trial(asked: Asked, run: Planned) -> float | None:
    """Return the seconds of training of a whole run, estimated from a trial of ``TRIAL_STEPS`` steps.

    Return 0 if the trial diverges, and None if it fails, which is reported. The trial is done in a hidden folder below
    that of the campaign, or of the items, which is removed afterwards.

    Raises: SystemExit if a signal stops it.
    """
    inform(f"trying {TRIAL_STEPS} steps of {run.norm}, to estimate the time of training")
    words = asked.words_of(run)
    own = [word for word in words if not word.lstrip("+~").startswith(("logger=", "logger."))]  # a trial is no run
    own += [f"{key}={TRIAL_STEPS}" for key in ("max_steps", "log_every", "checkpoint_every", "eval_every")]
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=asked.folder) as results:
        job = config.job([*own, value_word("results", results)], asked.config_dir)
        pause(report)  # a timing on this machine is not disturbed
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            outcome = runner.execute(job, runner.Conditions(pauses=True))
        if outcome.signum is not None:
            raise SystemExit(128 + outcome.signum)
        if outcome.status == "failed":
            reason = str(outcome.error).partition(" (traceback in ")[0]  # which is removed with the trial
            report(f"the trial of {run.norm} failed: {reason}")
            return None
        if outcome.status == "diverged":
            return 0.0
        clock = record.RunFolder(job.folder).read_metrics()[0][-1]["seconds"]
        steps = asked.composed(words).config.max_steps
        return float(clock["data"] + clock["train"]) * steps / TRIAL_STEPS
