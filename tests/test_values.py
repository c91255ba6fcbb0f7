"""Values on the command line: spellings of one value, missing values, limits, and words that are too long."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.commands import timing
from rmsexp.config.schema import flatten
from rmsexp.system.readers import read_yaml

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
ALL_RUNS = [path.parent for path in sorted(REFERENCE.rglob("run.json")) if (path.parent / "config.yaml").exists()]
SERIES = list({path.parts[-4:-1]: path for path in ALL_RUNS}.values())  # one seed of each series


def kinds(path: Path) -> tuple[object, object]:
    """Return what a series is an example of: its task with the names of its options, and its norm."""
    task, setting, series = (re.sub("=[^+]*", "", name) for name in path.parts[-4:-1])
    norm, *options = series.split("+")
    return (task, setting, *options), norm


OPTIONS = {kind: path for path in SERIES for kind in kinds(path)}.values()


# --- spellings


@pytest.mark.parametrize(
    ("key", "spellings", "folder"),
    [
        ("deterministic", ("true", "on", "yes", "1", "TRUE", "'true'"), "demo/rms/seed0"),
        ("deterministic", ("false", "off", "no", "0"), "demo+deterministic=False/rms/seed0"),
        ("optim.lr", ("1", "1.0", "+1", "1e0", "'1'"), "demo+optim.lr=1.0/rms/seed0"),
        ("optim.lr", ("0.003", "3e-3", "'0.003'"), "demo/rms/seed0"),
        ("model.dropout", ("0", "0.0", "-0.0"), "demo+model.dropout=0.0/rms/seed0"),
        ("batch_size", ("8", "'8'", "+8"), "demo+batch_size=8/rms/seed0"),
        ("seed", ("7", "'7'", "07"), "demo/rms/seed7"),
        ("norm.eps_inside", ("false", "off"), "demo/rms+eps_inside=False/seed0"),
        ("norm.eps", ("1", "1.0"), "demo/rms+eps=1.0/seed0"),
        ("norm.axes", ("[1,2,3]", "['1',2,3]", "[ 1, 2, 3 ]"), "demo/rms+axes=1-2-3/seed0"),
    ],
)
def test_spellings_of_a_value_are_one_setting_and_one_config(key: str, spellings: Sequence[str], folder: str) -> None:
    jobs = [config.job([f"{key}={spelling}"]) for spelling in spellings]
    assert {job.folder for job in jobs} == {Path("results/cifar10", folder)}
    assert len({json.dumps(job.resolved) for job in jobs}) == 1


def test_spellings_in_config_files_do_not_count_either(tmp_path: Path) -> None:
    values = "deterministic: 'on'\nschedule: {steps: 5, period: 1}\n"
    for name, content in {"scale/mine": f"scale: mine\n{values}", "recipe/cifar10/mine": "optim: {lr: 1}\n"}.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"# @package _global_\n{content}")
    words = ["scale=mine", "optim.lr=1.0", "deterministic=true"]
    assert config.job(words, str(tmp_path)).setting == config.job(words[:1], str(tmp_path)).setting == "mine"


@pytest.mark.parametrize(
    "run",
    [pytest.param(path, marks=[] if path in OPTIONS else pytest.mark.minutes) for path in SERIES],
    ids=lambda path: path.relative_to(REFERENCE).as_posix(),
)
def test_committed_results_keep_their_folder_and_config(run: Path) -> None:
    """The words in the names of its folders give the run's folder, and the values in its record."""
    task, setting, series, seed = run.parts[-4:]
    scale, *options = setting.split("+")
    norm, *norm_options = series.split("+")
    if norm == "by_role":  # its options are norms with options of their own
        own = read_yaml(run / "config.yaml")["norm"]
        roles = ", ".join(f"{role}: '{name}'" for role, name in own["roles"].items())
        norm_options = [f"default='{own['default']}'", f"impl={own['impl']}", f"roles={{{roles}}}"]
    words = [
        f"task={task}",
        f"scale={scale}",
        *(option.replace("=None", "=null") for option in options),
        f"norm={norm}",
        *(f"norm.{word}" for word in norm_options),
    ]
    own_norm = None if norm in config.options("norm") else str(REFERENCE.parents[1] / "docs/gallery")
    job = config.job([*words, f"seed={seed.removeprefix('seed')}"], own_norm)
    assert job.folder.parts[-4:] == run.parts[-4:]
    recorded = flatten(read_yaml(run / "config.yaml"))  # without the keys that did not exist yet
    changed = config.differences(job.resolved, read_yaml(run / "config.yaml"))
    assert not changed.keys() & recorded.keys()


@pytest.mark.parametrize("content", [{}, {"norm": 1}, {"norm": {}}, {"norm": {"_target_": "os.system"}, "task": "x"}])
def test_a_damaged_recorded_config_is_compared_as_it_is(content: dict[str, object]) -> None:
    assert config.respelled(content) == content


# --- missing values


def test_a_config_file_can_leave_a_value_to_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/own.yaml").write_text("_target_: rmsexp.norms.RMS\nname: own\nimpl: eager\neps: ???\n")
    with pytest.raises(config.ConfigError, match=r"^norm\.eps has no value"):
        config.job(["norm=own"], str(tmp_path))
    assert config.job(["norm=own", "norm.eps=0.5"], str(tmp_path)).series == "own+eps=0.5"


# --- limits


@pytest.mark.parametrize("value", ["9" * 100_000, "[" * 300 + "]" * 300])
@pytest.mark.parametrize("key", ["seed", "timing.reference"])
def test_a_word_that_is_too_long_is_refused(key: str, value: str) -> None:
    with pytest.raises(config.ConfigError):
        timing.parse([f"{key}={value}"])


@pytest.mark.parametrize("target", ["..", ".", "''", "rmsexp.norms.", "a" + ".a" * 1000, "rmsexp.norms.base.Norm.name"])
def test_a_path_that_is_no_class_is_refused(target: str) -> None:
    with pytest.raises(config.ConfigError, match=r"^norm=rms: _target_ .*cannot be imported"):
        config.job([f"norm._target_={target}"])


def test_a_module_that_is_no_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_python.py").write_text("class Mine(\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(config.ConfigError, match=r"_target_ not_python\.Mine cannot be imported \(SyntaxError: "):
        config.job(["norm._target_=not_python.Mine"])


@pytest.mark.parametrize(
    "word", ["hydra.verbose=true", "hydra/launcher=joblib", "sweep=lr", "+hydra.sweeper.params.seed=1"]
)
def test_a_word_about_sweeps_is_refused_where_it_has_no_effect(word: str) -> None:
    with pytest.raises(config.ConfigError, match="has an effect in sweeps only"):
        config.job([word])
