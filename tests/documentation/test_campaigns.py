"""The quick campaign of docs/campaigns.md: the own norm is judged."""

import json
import shlex
from pathlib import Path

import pytest
from helpers import documents

from rmsexp.commands.campaign import main
from rmsexp.system import process

PAGE = documents.ROOT / "docs/campaigns.md"
# so that a campaign of some twenty runs takes seconds
SMALLER = (
    *("schedule.steps=21", "schedule.warmup=2", "final.min_seeds=2", "final.max_seeds=2", "timing.processes=1"),
    *("timing.budget=1", "batch_size=4", "context=16", "model.width=16", "model.layers=1", "model.inner=16"),
    *("log_every=20", "device=cpu"),
)


@pytest.mark.minutes
@pytest.mark.parametrize("norm", ["dyisru", "dyt"])
def test_another_norm_is_judged(
    norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the page, with its own norm and with DyT."""
    documents.write_dyisru(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(process, "follow_parent", lambda _: None)  # would bind the process of the tests
    (command,) = (line for line in documents.commands(PAGE) if "campaign quick" in line)
    typed = shlex.split(command.removeprefix("python -m rmsexp.campaign ").removesuffix(" --jobs 2"))
    assert main([*(word.replace("dyisru", norm) for word in typed), *SMALLER]) == 0
    shown = capsys.readouterr().out
    for line in (
        "rate of rms: ",
        f"rate of {norm}: ",
        f": {norm} equals rms: ",
        "2 seeds, which see differences from ",
    ):
        assert line in shown
    assert "time of a step: saved vs RMSNorm, one process, not replicated: " in shown
    (plan,) = Path("results/campaigns").glob("*/campaign.json")
    final = [job for job in json.loads(plan.read_text())["jobs"] if job["stage"] == "final"]
    assert sorted((job["norm"], job["seed"]) for job in final) == [(norm, 0), (norm, 1), ("rms", 0), ("rms", 1)]
