"""The bench of commands, and a run that was not interrupted."""

import sys
from pathlib import Path

import pytest
from helpers.command_bench import TINY, Bench
from helpers.stopping import evaluate_few_images

import rmsexp
from rmsexp import config


@pytest.fixture
def bench(
    tmp_path: Path, data_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # launch sets sys.argv for Hydra; this restores it after the test
    evaluate_few_images(monkeypatch)
    return Bench(tmp_path, data_root, capsys, monkeypatch)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    """Return the folder of a run of eight steps that was not interrupted."""
    results = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        evaluate_few_images(patch)
        rmsexp.run(overrides=[f"results={results}", f"data.root={data_root}", *TINY, "max_steps=8"])
    return config.job([f"results={results}", *TINY]).folder
