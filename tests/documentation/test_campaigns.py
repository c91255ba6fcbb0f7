"""The campaigns in docs/campaigns.md: the own norm is judged."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import documents

from rmsexp.commands.campaign import main
from rmsexp.data import Images
from rmsexp.data.synthetic import shapes
from rmsexp.system import process
from rmsexp.tasks import cifar10

PAGE = documents.ROOT / "docs/campaigns.md"
# What a test has in place of the command's values, so that a campaign of some twenty runs takes seconds.
SMALLER = {"schedule.steps": "21", "data.validation": "16", "final.min_seeds": "2", "final.max_seeds": "2"}


def scaled(images: Images, *_: object) -> Images:
    """Return the images scaled to [-1, 1] in place of whitened ones, which take 8 s."""
    pixels = {name: array.astype(np.float32) / 127.5 - 1 for name, array in images.pixels.items()}
    return replace(images, **pixels)


def smaller(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{key}{equals}{SMALLER.get(key, value)}"


@pytest.mark.minutes
@pytest.mark.parametrize("norm", ["dyisru", "dyt"])
def test_another_norm_is_judged(
    norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the page, with its own norm and with DyT."""
    documents.write_dyisru(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    images = shapes.shapes(80, 16)
    monkeypatch.setitem(cifar10.SOURCES, "shapes", lambda _: images)
    monkeypatch.setattr(cifar10.cifar10, "whitened", scaled)
    monkeypatch.setattr(process, "follow_parent", lambda _: None)  # would bind the process of the tests
    (command,) = (line for line in documents.commands(PAGE) if "norms=[ln,dyisru]" in line and "scale=" not in line)
    typed = shlex.split(command.removeprefix("python -m rmsexp.campaign "))
    words = [smaller(word).replace("dyisru", norm) for word in typed]
    assert main([*words, "batch_size=8", "model.width=0.05", "log_every=20", "device=cpu"]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in ("rate of ln: ", f"rate of {norm}: ", f": {norm} equals ln: ", "2 seeds; "))
    (plan,) = Path("results/campaigns").glob("*/campaign.json")
    final = [job for job in json.loads(plan.read_text())["jobs"] if job["stage"] == "final"]
    assert sorted((job["norm"], job["seed"]) for job in final) == [(norm, 0), (norm, 1), ("ln", 0), ("ln", 1)]
