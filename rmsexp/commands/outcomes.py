"""What is shown after a run: how it ended, the curves of its setting, and a command to type next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp import config
from rmsexp.records import record
from rmsexp.system.command_line import command, config_dir_words, report

if TYPE_CHECKING:
    from rmsexp.work.runner import Outcome

PAPER_NORMS = ("ln", "rms", "none", "prms", "bn", "wn")  # norms that are suggested for the next run, in this order


def show(job: config.Job, outcome: Outcome) -> None:
    """Print how a run ended, and its last evaluation: the loss and the task's metric on each split."""
    if outcome.status == "failed":
        print(f"rmsexp: {outcome.error}", file=sys.stderr)
        return
    if outcome.already:
        longer = "; a larger max_steps continues this one" if outcome.status == "finished" else ""
        print(f"already {outcome.status} at step {outcome.step} (force=true starts a new run{longer})")
        for notice in outcome.notices:
            print(f"note    {notice}")
    elif outcome.status == "interrupted":
        print(f"interrupted at step {outcome.step}; {job.again} to continue")
    else:
        reason = f": {outcome.error}" if outcome.error else ""
        print(f"{outcome.status} at step {outcome.step}{reason}")
    folder = record.RunFolder(job.folder)
    rows = folder.read_metrics()[0] if folder.metrics_path.exists() else []
    evaluations = [row for row in rows if row["split"] != "train"]
    for row in (row for row in evaluations if row["step"] == evaluations[-1]["step"]):
        print(f"{row['split']:7} {record.metrics_text(row, folder.metric())} (step {row['step']})")
    print(f"record  {job.folder}")


def next_command(job: config.Job, config_dir: str | None) -> str:
    """Return a command that runs the first of ``PAPER_NORMS`` that has no folder in this setting.

    If all have one, the command is a sweep over these norms with three seeds. All other words are those of the job.
    """
    from rmsexp.train.device import lacks_gpu

    left_out = ("norm=", "norm.", "force=", *["device="] * lacks_gpu(job.config))
    words = [
        *config_dir_words(config_dir),
        *(word for word in job.overrides if not word.lstrip("+~").startswith(left_out)),
    ]
    existing = {path.name for path in job.setting_folder.iterdir() if path.is_dir()}
    # model.qk_norm=true is refused with norms that do not act on activations
    refused = ("none", "wn") if getattr(getattr(job.config, "model", None), "qk_norm", False) else ()
    norms = [name for name in PAPER_NORMS if name not in refused]
    norm = next((name for name in norms if name not in existing), None)
    if norm is not None:
        return command("rmsexp", *words, f"norm={norm}")
    words = [word for word in words if not word.startswith("seed=")]
    return command("rmsexp", "-m", *words, f"norm={','.join(norms)}", "seed=0,1,2")


def draw(job: config.Job) -> Path | None:
    """Redraw the figures of a job's setting and return the path of ``curves.png``.

    Return None if no run has metrics yet, or if they cannot be drawn, which is reported.
    """
    from rmsexp.report import draw as draw_setting
    from rmsexp.report.comparison import NoMetricsError

    try:
        return draw_setting(config.expanded(job.config.results), job.config.task, job.setting) / "curves.png"
    except NoMetricsError:
        return None
    except (OSError, ValueError) as error:
        report(f"the curves cannot be drawn: {error}")
        return None
