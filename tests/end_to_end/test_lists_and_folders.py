"""Empty, nested and recursive lists, and folders that hold no results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.campaign import question
from rmsexp.commands import report, status
from rmsexp.config.classes import load_own


@pytest.mark.parametrize(
    "word", ["norms=[]", "norms=&a [*a]", "norms={a: 1}", "tune.over=[]", "tune.runs=[]", "pilot=[]"]
)
def test_a_campaign_of_no_list_is_refused(word: str) -> None:
    with pytest.raises(config.ConfigError, match=r"norms must|recursion|a list stands where keys belong"):
        question.read("quality_order_embedding", [word])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &a [*a]\n", "an alias (*a) is not allowed"),  # nine lines of aliases can stand for gigabytes
        ("a: " + "[" * 900 + "]" * 900, "more than 20 levels of nesting"),
        ("a: " + "x" * 40_000, "more than 32,768 characters"),
    ],
)
def test_a_config_of_the_users_own_has_a_limited_size(content: str, message: str, tmp_path: Path) -> None:
    for place in ("norm", "task", "scale", "sweep", "logger", "recipe/order_embedding", "pair", "hydra/launcher", "."):
        folder = tmp_path / place.replace("/", "_").replace(".", "top")
        (folder / place).mkdir(parents=True)
        (folder / place / "own.yaml").write_text(content)
        with pytest.raises(config.ConfigError, match=r"own\.yaml") as caught:
            config.compose([], str(folder))
        assert message in str(caught.value)
    with pytest.raises(ValueError, match=r"own\.yaml"):
        load_own(str(tmp_path / "norm"))
    (tmp_path / "pipe/norm").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe/norm/own.yaml")
    with pytest.raises(config.ConfigError, match="is not a regular file"):
        config.compose([], str(tmp_path / "pipe"))


def test_the_root_of_the_file_system_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (report.main, status.main):
        assert command(["/"]) == 1
        assert capsys.readouterr().err == "rmsexp: / is all that this machine has; name the folder of your results\n"
