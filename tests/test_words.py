"""The words of a command line: other names of norms, and keys without effect. Sweeps are tested with the config."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmsexp import config, words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("norm=layernorm", "norm=ln"),
        ("norm=LayerNorm,rms_norm,batch-norm", "norm=ln,rms,bn"),
        ("norms=[RMSNorm,prmsnorm+p=0.5,wn]", "norms=[rms,prms+p=0.5,wn]"),
        ("norms=ln,rms", "norms=[ln,rms]"),
        ("norm=LN", "norm=ln"),
        ("norm=rmss", "norm=rmss"),
        ("norm=mean-only-bn,NonParametric_LN", "norm=mean_only_bn,nonparametric_ln"),
        ("timing.reference=layernorm", "timing.reference=ln"),
        ("timing.norms=[LayerNorm,rms]", "timing.norms=[ln,rms]"),
        ("norm.p=0.5", "norm.p=0.5"),
        ("data.name=identity", "data.name=identity"),
    ],
)
def test_norms_have_other_names(word: str, expected: str) -> None:
    assert words.overrides([word]) == [expected]


def test_every_other_name_is_of_a_norm() -> None:
    assert set(config.ALIASES.values()) <= {*config.options("norm")}


def test_a_norm_of_the_users_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/layernorm.yaml").write_text("_target_: rmsexp.norms.LN\nname: layernorm\nimpl: eager\n")
    assert words.overrides(["norm=layernorm,LayerNorm"], str(tmp_path)) == ["norm=layernorm,layernorm"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((20, "k=20"), (1e-5, "k=1e-05"), (None, "k=null"), (True, "k=true"), ("a", "k=a"), ([1], "k=[1]")),
        *((np.int64(2), "k=2"), (np.float32(0.5), "k=0.5"), (Path("out"), "k=out"), (Path("a b"), "k='a b'")),
    ],
)
def test_values_of_python_become_overrides(value: object, expected: str) -> None:
    assert words.override("k", value) == expected


@pytest.mark.parametrize("value", [object(), [np.int64(2)], np.zeros(2)])
def test_other_values_of_python_are_refused(value: object) -> None:
    with pytest.raises(config.ConfigError, match=r"k: a \w+ cannot be a value of the config"):
        words.override("k", value)
