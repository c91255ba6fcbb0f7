"""Empty, nested and recursive lists, and folders that hold no results."""

import os
from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.campaign import question
from rmsexp.config.classes import load_own


@pytest.mark.parametrize("word", ["norms=[]", "norms=&a [*a]", "norms={a: 1}", "tune.over=[]", "tune.runs=[]"])
def test_a_campaign_of_no_list_is_refused(word: str) -> None:
    with pytest.raises(config.ConfigError, match=r"norms must|recursion|a list stands where keys belong"):
        question.read("quality_order_embedding", [word])


def test_a_config_of_the_users_own_has_a_limited_size(tmp_path: Path) -> None:
    """As :mod:`rmsexp.system.readers` limits it, in each folder of which Hydra reads files."""
    for number, place in enumerate(("norm", "sweep", "recipe/order_embedding", "hydra/launcher", ".")):
        folder = tmp_path / str(number)
        (folder / place).mkdir(parents=True)
        (folder / place / "own.yaml").write_text("a: &a [*a]\n")
        with pytest.raises(config.ConfigError, match=r"own\.yaml: an alias \(\*a\) is not allowed"):
            config.compose([], str(folder))
    path = tmp_path / "0/norm/own.yaml"
    with pytest.raises(ValueError, match=r"own\.yaml"):
        load_own(str(tmp_path / "0"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(config.ConfigError, match="is not a regular file"):
        config.compose([], str(tmp_path / "0"))
