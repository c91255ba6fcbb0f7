"""Command lines: the config that they compose, the folder of their run, and the mistakes in them."""

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rmsexp import config
from rmsexp.config import classes, identity
from rmsexp.config import words as words_module
from rmsexp.data import DataError


def has_files_of_its_own(task: str, norm: str, scale: str) -> bool:
    """Return whether a combination is needed so that each file of norm, recipe and pair is read once."""
    if (task, norm) == ("attentive_reader", "bn"):  # a pair with a file of its own at scale=paper
        return True
    return norm == "rms" or (scale == "demo" and (task == "cifar10" or f"{task}_{norm}" in config.options("task_norm")))


COMBINATIONS = [
    pytest.param(task, norm, scale, marks=[] if has_files_of_its_own(task, norm, scale) else pytest.mark.minutes)
    for task in config.options("task")
    for norm in config.options("norm")
    for scale in config.options(f"recipe/{task}")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["task=rnnsearch", "scale=paper", "norm=prms", "norm.p=0.5", "seed=3", "optim.lr=1e-2"],
        ["optim.lr=0.1", "task=transformer", "optim.lr=0.2", "scale=small", "model.pre_norm=true"],
        ["task=rnnsearch", "model.variant=nematus_theano", "max_steps=7"],
        ["norm.axes=[1,2,3]", "threads=null", "logger=[wandb,tensorboard]", "results='a b'"],
        ["task=attentive_reader", "norm=bn", "norm.everywhere=true", "task_norm=[]", "data={root: /a, validation: 3}"],
        ["task=language_model", "norm=dyt", "results=${data.root}/x", "+model.new=1", "++norm.alpha=0.3"],
        ["norm=ln", "norm_eps=1e-3", "precision='bfloat16'", "schedule.steps=90"],
        ["max_steps=5", "++max_steps=7"],
        ["norm.axes=[1,2,3]", "+norm.axes=[2,3]"],
    ],
    ids=" ".join,
)
def test_a_config_is_what_hydra_composes(words: list[str]) -> None:
    """Values are set after Hydra has composed the files, once for all configs of the same files."""
    for ordered in (words, words[::-1]):
        with initialize_config_dir(str(config.CONFIGS), version_base=None):
            whole = compose("config", ordered)
        for _ in range(2):
            composed = config.compose(ordered)
            assert OmegaConf.to_container(composed) == OmegaConf.to_container(whole)
            assert OmegaConf.is_struct(composed)
            composed.seed = 1234  # not seen by the next one


# --- identity


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        pytest.param([], "cifar10/demo/rms/seed0", id="defaults"),
        pytest.param(["norm=ln", "scale=paper"], "cifar10/paper/ln/seed0", id="choices"),
        pytest.param(["optim.lr=0.003", "norm.eps=1e-6", "seed=0"], "cifar10/demo/rms/seed0", id="defaults typed"),
        pytest.param(["optim.lr=0.01"], "cifar10/demo+optim.lr=0.01/rms/seed0", id="setting"),
        pytest.param(["norm=none", "optim.lr=0.0003"], "cifar10/demo/none/seed0", id="the pair's own value"),
        pytest.param(["norm=none", "optim.lr=0.003"], "cifar10/demo+optim.lr=0.003/none/seed0", id="not the pair's"),
        pytest.param(["norm=prms", "norm.p=0.5"], "cifar10/demo/prms+p=0.5/seed0", id="series"),
        pytest.param(
            ["norm.axes=[1,2,3]", "model.width=0.5", "batch_size=8"],
            "cifar10/demo+batch_size=8+model.width=0.5/rms+axes=1-2-3/seed0",
            id="both, sorted",
        ),
        pytest.param(["precision=bfloat16"], "cifar10/demo+precision=bfloat16/rms/seed0", id="precision"),
        pytest.param(["schedule.steps=90"], "cifar10/demo+schedule.steps=90/rms/seed0", id="the schedule's length"),
    ],
)
def test_folder(overrides: list[str], folder: str) -> None:
    assert config.job(overrides).folder == Path("results", folder)
    assert config.job(overrides[::-1]).folder == Path("results", folder)


@pytest.mark.parametrize(
    "override",
    [
        *("data.root=/elsewhere", "device=cpu", "threads=3", "force=true", "max_steps=7", "logger=wandb"),
        *("logger=[wandb,tensorboard]", "log_every=3", "eval_every=3", "checkpoint_every=3"),
    ],
)
def test_keys_that_are_not_part_of_the_identity(override: str) -> None:
    assert config.job([override]).folder == config.job([]).folder


@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_a_run_without_keys_that_were_added_later_continues_with_their_former_values(scale: str) -> None:
    words = ["task=rnnsearch", f"scale={scale}"]
    job, older = config.job([*words, "model.tied=true"]), config.job(words).resolved
    for key in identity.ADDED:
        *groups, name = key.split(".")
        (older[groups[0]] if groups else older).pop(name, None)  # some are keys of other tasks
    assert config.differences(job.resolved, older) == {}
    assert config.digest(job.resolved) == config.digest(older)
    assert config.differences(config.job([*words, "model.tied=false"]).resolved, older) == {"model.tied": False}


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (["model.tied=true", "model.variant=nematus_tf"], "demo"),
        (["model.tied=false"], "demo+model.tied=False"),
        (["scale=paper"], "paper"),
        (["scale=paper", "model.tied=true"], "paper+model.tied=True"),
        (["model.variant=nematus_theano"], "demo+model.variant=nematus_theano"),
        (["model.variant=nematus_theano", "label_smoothing=0.0"], "demo+model.variant=nematus_theano"),
        (["label_smoothing=0.0"], "demo+label_smoothing=0.0"),
    ],
)
def test_the_setting_has_the_variant_of_a_model_but_not_the_values_that_it_determines(
    overrides: list[str], setting: str
) -> None:
    assert config.job(["task=rnnsearch", *overrides]).setting == setting


@pytest.mark.parametrize(("task", "endings"), [("language_model", [""]), ("rnnsearch", [".en", ".de"])])
def test_the_setting_of_own_files_has_a_digest_of_their_contents_and_no_paths(
    task: str, endings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "private", tmp_path / "elsewhere"):
        folder.mkdir()
        for name in ("a", "b", "c"):
            for ending in endings:
                (folder / f"{name}{ending}").write_text(name)
    monkeypatch.chdir(tmp_path)

    def job(folder: str, train: str = "a") -> config.Job:
        paths = [f"data.train={folder}{train}", f"data.valid={folder}b", f"data.test={folder}c"]
        return config.job([f"task={task}", "data.name=files", *paths])

    first, again = job("private/"), job(f"{tmp_path}/elsewhere/")
    assert re.fullmatch(r"demo\+data\.name=files\+data=[0-9a-f]{8}", first.setting)
    assert (again.setting, again.series) == (first.setting, first.series)
    assert config.differences(first.resolved, again.resolved) == {}
    assert config.digest(first.resolved) == config.digest(again.resolved)
    assert job("private/", train="b").setting != first.setting
    with pytest.raises(DataError, match="private/absent"):
        job("private/", train="absent")


def test_the_digest_of_a_run_stays_the_same() -> None:
    """Checkpoints carry this digest; with another one, no run of an earlier version would continue."""
    for norm, digest in (("rms", "2ec1605a14796a13"), ("wn", "ab3f8da7fc418356")):
        resolved = config.job(["task=rnnsearch", "scale=small", f"norm={norm}"]).resolved
        assert config.digest(resolved).startswith(digest)


def test_the_folder_is_below_results_and_a_file_in_their_place_is_named(tmp_path: Path) -> None:
    assert config.job([f"results={tmp_path}/a b"]).folder == tmp_path / "a b" / "cifar10/demo/rms/seed0"
    file = tmp_path / "README.md"
    file.touch()
    for results in (file, file / "below"):
        with pytest.raises(config.ConfigError) as caught:
            config.job([f"results={results}"])
        assert str(caught.value) == f"results={results}: {file} is a file; name a folder"


def test_the_home_folder_is_expanded_after_an_equals_sign() -> None:
    assert config.expand_home("data.root=~/data") == f"data.root={Path.home()}/data"
    assert config.expand_home("~norm") == "~norm"


# --- composition


@pytest.mark.slow
@pytest.mark.parametrize(("task", "norm", "scale"), COMBINATIONS)
def test_every_combination_is_valid(task: str, norm: str, scale: str) -> None:
    job = config.job([f"task={task}", f"norm={norm}", f"scale={scale}"])
    assert (job.config.task, job.norm.name, job.setting, job.series) == (task, norm, scale, norm)
    assert job.config.max_steps == job.config.schedule.steps


def test_later_groups_win_and_the_command_line_wins_over_all(tmp_path: Path) -> None:
    """Scale sets all four keys, recipe the last three, pair the last two, and the command line the last."""
    keys = ["batch_size", "log_every", "eval_every", "checkpoint_every"]
    scale = "scale: mine\nschedule: {steps: 5, period: 1}\n"
    files = {"scale/mine": scale, "recipe/cifar10/mine": "", "task_norm/cifar10_own": ""}
    for first, (name, text) in enumerate(files.items()):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        values = "".join(f"{key}: {first + 1}\n" for key in keys[first:])
        path.write_text(f"# @package _global_\n{text}{values}")
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/own.yaml").write_text("_target_: rmsexp.norms.RMS\nname: own\nimpl: eager\n")
    job = config.job(["scale=mine", "norm=own", "checkpoint_every=4"], str(tmp_path))
    assert [getattr(job.config, key) for key in keys] == [1, 2, 3, 4]
    assert job.folder == Path("results/cifar10/mine/own/seed0")


NAMED_RMS = "_target_: rmsexp.norms.RMS\nname: rms\nimpl: eager\n"


@pytest.mark.parametrize(
    ("word", "content", "message"),
    [
        ("norm=mine", NAMED_RMS, "norm.name is rms; it must be mine"),
        ("norm=sub/mine", NAMED_RMS, "norm.name is rms; it must be mine"),
        ("scale=mine", "# @package _global_\nscale: small\n", "scale is small; it must be mine"),
    ],
)
def test_a_file_that_names_itself_otherwise_is_refused(word: str, content: str, message: str, tmp_path: Path) -> None:
    """Its runs would be recorded as those of another norm or scale."""
    path = tmp_path / f"{word.replace('=', '/')}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    (tmp_path / "recipe/cifar10").mkdir(parents=True)
    (tmp_path / "recipe/cifar10/mine.yaml").write_text("# @package _global_\nschedule: {steps: 5, period: 1}\n")
    with pytest.raises(config.ConfigError, match=re.escape(f"{path}: {message}, the name of the file")):
        config.job([word], str(tmp_path))


def test_the_last_of_several_choices_of_a_group_counts() -> None:
    job = config.job(["task=cifar10", "norm=ln", "scale=small", "norm=rms", "task=language_model", "scale=demo"])
    assert (job.config.task, job.config.scale, job.series) == ("language_model", "demo", "rms")


@pytest.mark.parametrize(
    "name", ["norm/rms", "recipe/cifar10/demo", "task_norm/attentive_reader_bn/paper", "campaign/quality_cifar10"]
)
def test_a_file_with_the_name_of_one_of_the_package_is_refused(name: str, tmp_path: Path) -> None:
    """Hydra would use the package's, without a word."""
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text((config.CONFIGS / f"{name}.yaml").read_text())
    with pytest.raises(config.ConfigError, match=re.escape(f"{path} has the name of a file of rmsexp")):
        config.job(["norm=rms"], str(tmp_path))


# --- recorded configs


def recorded(tmp_path: Path, choice: str = "norm=ln", **changes: Any) -> Path:
    """Write the config of a run with this norm, after setting some of its keys, and return the file's path."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.job([choice]).resolved | changes, sort_keys=False))
    return path


@pytest.mark.parametrize("name", ["rms", "mean_only_bn"])
def test_a_recorded_config_gives_the_config_and_the_norm_of_its_run(name: str, tmp_path: Path) -> None:
    job = config.job([f"norm={name}"])
    assert config.read(recorded(tmp_path, f"norm={name}")) == (job.config, job.norm)


@pytest.mark.parametrize("task", ["chess", None, "translation", "a.b", "", "\0", 5])
def test_a_recorded_config_without_a_known_task_is_refused(task: Any, tmp_path: Path) -> None:
    """The module ``rmsexp.tasks.translation`` exists, but is not a task."""
    path = recorded(tmp_path, task=task)
    with pytest.raises(ValueError, match=rf"^{path}: task=.*rmsexp\.tasks\."):
        config.read(path)


OWN_NORM = """
from dataclasses import dataclass
from pathlib import Path
from rmsexp.norms import RMS
Path(__file__).with_name("ran").touch()
@dataclass(frozen=True, kw_only=True)
class Mine(RMS):
    pass
"""


def test_a_recorded_config_runs_no_code_unless_the_user_imported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that a recorded config names is not imported. A norm of a module that is imported already is found."""
    (tmp_path / "beside_the_run.py").write_text(OWN_NORM)
    monkeypatch.syspath_prepend(tmp_path)
    norm_config = config.job(["norm=rms"]).resolved["norm"] | {"_target_": "beside_the_run.Mine"}
    path = recorded(tmp_path, norm=norm_config)
    with pytest.raises(ValueError, match=rf"^{path}: norm=rms: _target_ beside_the_run\.Mine is not a class of rmsexp"):
        config.read(path)
    by_role = config.job(["norm=by_role"]).resolved["norm"] | {"roles": {"query": "module+module=beside_the_run.Mine"}}
    _, norm = config.read(recorded(tmp_path, norm=by_role))
    with pytest.raises(config.ConfigError, match="is not a class of rmsexp"):
        norm.at(role="query").value("query", 4)
    assert not (tmp_path / "ran").exists()
    path = recorded(tmp_path, norm=norm_config)
    mine = classes.norm_class("beside_the_run.Mine")
    assert type(config.read(path)[1]) is mine


@pytest.mark.parametrize(
    "target",
    ["os.system", "rmsexp.norms.Linear", "rmsexp.norms.base.torch", "rmsexp.config.Job", "RMS", ".x", "", None],
)
def test_a_recorded_config_names_a_norm(target: Any, tmp_path: Path) -> None:
    norm = config.job(["norm=rms"]).resolved["norm"]
    path = recorded(tmp_path, norm=norm | {"_target_": target})
    with pytest.raises(ValueError, match=rf"^{path}: norm=rms: _target_ .*is not a (class|dataclass) "):
        config.read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": "a"}, "seed: Value 'a' of type 'str' could not be converted to Integer"),
        ({"norm": 5}, "the norm's file names no class"),
        ({"model": None}, "model is a group of keys"),
        ({"extra": datetime.date(2020, 1, 1)}, "Value 'date' is not a supported primitive type"),
        ({"extra": 1}, "extra is not known"),
    ],
)
def test_a_wrong_value_in_a_recorded_config_is_named_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = recorded(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"^{path}: ") as caught:
        config.read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- sweeps


def expand(*words: str, multirun: bool = True) -> list[list[str]]:
    return words_module.expand(words, multirun, None).runs


def values_of(runs: Sequence[Sequence[str]], *keys: str) -> list[tuple[str, ...]]:
    return [tuple(dict(word.split("=") for word in run)[key] for key in keys) for run in runs]


def test_seeds_are_slowest_and_norms_fastest() -> None:
    runs = expand("norm=rms,ln", "optim.lr=1,2", "seed=range(0,2)", "max_steps=3")
    assert {run[1] for run in values_of(runs, "seed", "max_steps")} == {"3"}
    slow = [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
    assert values_of(runs, "seed", "optim.lr", "norm") == [(*pair, norm) for pair in slow for norm in ("rms", "ln")]


def test_glob_chooses_norms_by_their_names_and_one_run_is_no_sweep() -> None:
    assert expand("norm=glob(*ln)") == [["norm=ln"], ["norm=nonparametric_ln"]]
    assert words_module.expand(["norm=ln"], False, None)[:2] == ([["norm=ln"]], None)
    assert expand() == [[]]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "count"), [("norms", 12), ("lr", 24), ("p", 10)])
def test_presets_are_sweeps_of_valid_runs(preset: str, count: int) -> None:
    runs = expand(f"sweep={preset}", multirun=False)
    assert len({config.job(run).folder for run in runs}) == len(runs) == count


def test_values_on_the_command_line_override_a_preset_and_keep_the_order() -> None:
    runs = expand("sweep=lr", "norm=rms,ln", "seed=0,1", multirun=False)
    first = [("0", "0.0003", "rms"), ("0", "0.0003", "ln"), ("0", "0.001", "rms")]
    assert values_of(runs, "seed", "optim.lr", "norm")[:3] == first
    assert [run[0] for run in values_of(runs, "seed")] == ["0"] * 8 + ["1"] * 8


@pytest.mark.parametrize(
    "words",
    [
        ("norm=dyt,derf", "norm.alpha=0.3"),
        ("sweep=p", "norm.k_rounding=floor"),
        ("task=rnnsearch,transformer", "data.vocabulary=200"),
        ("norm=bn,mean_only_bn", "++norm.momentum=0.05", "threads=null"),
    ],
)
def test_a_key_of_the_swept_norms_or_tasks_may_have_one_value(words: tuple[str, ...]) -> None:
    """The default task or norm has no such key."""
    sweep = words_module.expand(words, True, None)
    assert len({config.job(run).folder for run in sweep.runs}) == len(sweep.runs) > 1
    one_value = [word for word in sweep.words or [] if not config.parse([word])[0].is_sweep_override()]
    config.compose(one_value, hydra=True)  # as Hydra does first


def test_hydra_does_the_runs_in_the_same_order() -> None:
    """Hydra's sweeper, given the words that ``expand`` returns."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for words in (("sweep=lr", "seed=0,1"), ("norm=rms,ln", "seed=0,1", "optim.lr=1,2")):
        runs, typed, *_ = words_module.expand(words, True, None)
        (batch,) = BasicSweeper.split_arguments(
            OverridesParser.create().parse_overrides([word for word in typed if not config.is_for_sweeps(word)]), None
        )
        assert [list(run) for run in batch] == runs


def test_a_changed_file_of_ones_own_is_read_again_in_the_same_process(tmp_path: Path) -> None:
    """As in a notebook, in which a run is repeated after a change. The folder may have any name."""
    path = tmp_path / "my configs, it's all/norm/own.yaml"
    path.parent.mkdir(parents=True)
    for eps in (1e-6, 1e-3):
        path.write_text(f"_target_: rmsexp.norms.RMS\nname: own\neps: {eps}\nimpl: eager\n")
        job = config.job(["norm=own"], str(path.parents[1]))
        assert (job.resolved["norm"]["eps"], job.series) == (eps, "own")


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
        classes.load_own(str(tmp_path / "0"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(config.ConfigError, match="is not a regular file"):
        config.compose([], str(tmp_path / "0"))
