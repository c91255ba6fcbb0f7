"""``python -m rmsexp.analysis bleu``: sacreBLEU's paired bootstrap between the test translations of runs."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from rmsexp.commands.analysis import main
from rmsexp.tasks.translation import TRANSLATIONS

REFERENCES = [
    f"the {colour} dog runs over the {number} green hills" for colour in ("red", "blue") for number in range(20)
]


def write(folder: Path, translations: list[str], references: list[str] = REFERENCES) -> str:
    folder.mkdir()
    content = {"target": "en", "tests": {"test": [references, translations]}}
    (folder / TRANSLATIONS).write_bytes(gzip.compress(json.dumps(content).encode()))
    return str(folder)


def test_a_worse_model_differs_and_an_equal_one_does_not(tmp_path: Path) -> None:
    good = [line.replace("dog", "cat") for line in REFERENCES]
    worse = [line.replace("green hills", "mountains of ice") for line in good]
    runs = [write(tmp_path / name, lines) for name, lines in (("good", good), ("equal", good), ("worse", worse))]
    assert main(["bleu", *runs, "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "bleu-test.csv").set_index("metric").loc["BLEU"]
    assert table["score"].is_monotonic_decreasing
    assert table["p_value"].isna().tolist() == [True, False, False]
    assert (table["p_value"].iloc[1], table["p_value"].iloc[2] < 0.01) == (1, True)


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", REFERENCES)
    others = {
        "no test set with the same references": write(tmp_path / "other", REFERENCES, ["another"] * len(REFERENCES)),
        "do not match": write(tmp_path / "short", REFERENCES[1:]),
        f"no {TRANSLATIONS}": str(tmp_path),
    }
    for message, other in others.items():
        assert main(["bleu", run, other, "--out", str(tmp_path)]) == 1
        assert message in capsys.readouterr().err
