"""The words of a command line: other names of norms, and keys without effect. Sweeps are tested with the config."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from rmsexp import config
from rmsexp.config import words
from rmsexp.config.schema import as_config
from rmsexp.records.frames import names
from rmsexp.system.readers import read_yaml, yaml_text


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("norm=layernorm", "norm=ln"),
        ("norm=LayerNorm,rms_norm,batch-norm", "norm=ln,rms,bn"),
        ("norms=[RMSNorm,prmsnorm+p=0.5,wn]", "norms=[rms,prms+p=0.5,wn]"),
        ("norms=ln,rms", "norms=[ln,rms]"),
        ("norms=[layernorm,module+class=my.RMSNorm]", "norms=[ln,module+module=my.RMSNorm]"),
        ("norm=LN", "norm=ln"),
        ("norm=rmss", "norm=rmss"),
        ("norm=mean-only-bn,NonParametric_LN", "norm=mean_only_bn,nonparametric_ln"),
        ("timing.reference=layernorm", "timing.reference=ln"),
        ("timing.norms=[LayerNorm,rms]", "timing.norms=[ln,rms]"),
        ("norm.p=0.5", "norm.p=0.5"),
        ("data.name=identity", "data.name=identity"),
        ("norm=LayerNorm+eps=1e+3+bias=true", "norm=ln norm.eps=1e+3 norm.bias=true"),
        ("norm=module+class=my.Own+kwargs={a: 1, b: 2}", "norm=module norm.module=my.Own norm.kwargs={a: 1, b: 2}"),
    ],
)
def test_norms_have_other_names(word: str, expected: str) -> None:
    assert " ".join(words.overrides([word])) == expected


@pytest.mark.parametrize("others", ["none,{}", "{},{}", "{},rms", "{},rms+eps=1"])
def test_norms_in_a_sweep_cannot_have_options(others: str) -> None:
    with pytest.raises(config.ConfigError, match=r"cannot have options; run norm=prms\+p=0.5 by itself"):
        words.overrides([f"norm={others}".replace("{}", "prms+p=0.5")])
    assert words.overrides(["norm=ln+impl=eager,fused"]) == ["norm=ln", "norm.impl=eager,fused"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("results=/tmp/ä", "write \"results='/tmp/ä'\""),
        ("scale=large", r"task=cifar10 has no scale=large \(one of demo, medium, paper, small\)"),
        ("norm=ln,rms", "names several values"),
        ("optim={foo: 1}", r"optim\.foo is not known"),
        ("+optm.lr=1", r"optm is not known; did you mean optim\.lr\?"),
        ("device=gpu", "write device=cuda"),
    ],
)
def test_messages_say_what_to_write(typed: str, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        config.job([typed])


def test_launchers_belong_to_sweeps_and_folders_of_data_may_have_any_name() -> None:
    with pytest.raises(config.ConfigError, match="add -m"):
        words.expand(["hydra/launcher=joblib"], multirun=False, config_dir=None)
    sweep = words.expand(["norm=ln,rms", "data.root='/jörg/data'"], multirun=True, config_dir=None)
    assert sweep.words == ["data.root='/jörg/data'", "norm=ln,rms", "hydra.sweeper.params=null"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((20, "k=20"), (1e-5, "k=1e-05"), (None, "k=null"), (True, "k=true"), ("a", "k=a"), ([1], "k=[1]")),
        ({"a-b": "ln", -1: "rms+p=1", "c": {"d": [None, 2]}}, "k={a-b: ln, -1: 'rms+p=1', c: {d: [null, 2]}}"),
        *((np.int64(2), "k=2"), (np.float32(0.5), "k=0.5"), (Path("out"), "k=out"), (Path("a b"), "k='a b'")),
    ],
)
def test_values_of_python_become_overrides(value: object, expected: str) -> None:
    assert words.override("k", value) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(("k", value, r"k: a \w+ cannot be a value") for value in (object(), [np.int64(2)], np.zeros(2))),
        *((key, 1, "no key") for key in ("", "results=x", "a b", "~results", "seed=1,results")),
    ],
)
def test_other_values_of_python_and_what_is_no_key_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        words.override(key, value)


TEXTS = [
    *("runs/lr=0.1", "it's", "${seed}", "\\${seed}", "\\\\${seed}\\", "a${", "1e3", "007", "1_0", "-inf", "NaN"),
    *("null", "True", "a#b", "1,2", "é", 'q"w', "a\\'b", "a\\", "a\\\n", "\n", "\t", " a ", "", "~", "~/x", "%", "*"),
    *("[x]", "{y}", "(z)", "(" * 40, "range(1,3)", "choice(a,b)", "a: b", "&x", "!x", "@", "<x>", "\u2028", "'\"'"),
    *("/mnt/données", "/tmp/out~1", "a b", "plain/p-1.0"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_python_arrives_as_it_is(text: str, tmp_path: Path) -> None:
    (typed,) = words.overrides([words.override("data.train", text)])
    nested = words.override("optim.texts", {"a": [text]})
    composed = OmegaConf.create({"seed": 0, "data": {"train": ""}, "optim": {"texts": None}})
    for override in config.parse([typed, nested]):
        OmegaConf.update(composed, override.key_or_group, override.value())
    values = config.plain_values(composed)
    assert values["data"]["train"] == text
    assert values["optim"] == {"texts": {"a": [text]}}
    assert config.plain_values(as_config(values)) == values  # no reference is resolved when types are checked
    (tmp_path / "config.yaml").write_text(yaml_text(values))
    assert read_yaml(tmp_path / "config.yaml") == values


@pytest.mark.parametrize("text", ["runs/lr=0.1", "it's", "${seed}", "null", "1e3", "1,2", "a\nb", " a ", "é"])
def test_the_results_of_python_are_any_text(text: str) -> None:
    job = config.job(words.overrides([words.override("results", text)]))
    assert job.config.results == job.resolved["results"] == text
    assert job.folder == Path(text, "cifar10", "demo", "rms", "seed0")


def test_text_of_python_chooses_one_norm_and_choices_may_be_lists() -> None:
    for value in ("ln,rms", "[ln]", "norm=ln", "${seed}", "null", "rms seed=1"):
        with pytest.raises(config.ConfigError, match="is not known"):
            config.job(words.overrides([words.override("norm", value)]))
    chosen = {"norm": "LayerNorm", "scale": "small", "logger": ["wandb", "tensorboard"]}
    assert config.job(words.overrides([words.override("logger", None)])).config.logger.wandb is None
    job = config.job(words.overrides([words.override(key, value) for key, value in chosen.items()]))
    assert (job.norm.name, job.config.scale) == ("ln", "small")
    assert None not in vars(job.config.logger).values()


def test_the_plus_of_an_exponent_separates_no_parts_of_a_name() -> None:
    assert words.parts("rms+eps=1e+16+impl=fused") == ["rms", "eps=1e+16", "impl=fused"]
    assert words.parts("first+optim.lr=5e-4+34e324ae+seed=1") == ["first", "optim.lr=5e-4", "34e324ae", "seed=1"]
    assert names.label("rms+eps=1e+16") == "RMSNorm eps=1e+16"
