"""Help, and mistakes on the command line: each is reported in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from helpers.command_bench import Bench

from rmsexp import config
from rmsexp.config import words as words_module
from rmsexp.records import record
from rmsexp.work import runner

# --- help


def test_help_lists_groups_choices_keys_and_examples_without_slow_imports() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rmsexp", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for group in ("task", "norm", "scale", "logger", "sweep"):
        assert f"\n{group}: {', '.join(config.options(group))}\n" in done.stdout
    assert done.stdout.split("examples:")[1].count("python -m rmsexp") == 6
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "rmsexp.config" in imported
    assert not imported & {"torch", "torchvision", "pandas", "matplotlib", "numpy"}


def test_every_key_and_example_of_the_help_is_valid(bench: Bench) -> None:
    keys, examples = bench("--help").out.split("keys that every task has")[1].split("examples:")
    for line in keys.splitlines()[1:]:
        for key in line[:29].replace(",", "").split():
            assert config.compose([f"{key}=1"]) is not None
    for command in (line.strip() for line in examples.splitlines() if "python -m" in line):
        words = [config.expand_home(word) for word in command.removeprefix("python -m rmsexp").split()]
        sweep = words_module.expand([word for word in words if word != "-m"], "-m" in words, None)
        assert (sweep.words is not None) == ("-m" in words)
        # the other runs differ in the norm or in a value alone
        assert all(config.job(run) for run in (sweep.runs[0], sweep.runs[-1]))


def test_hydra_prints_the_config(bench: Bench) -> None:
    done = bench("--cfg", "job", "norm=ln")
    assert done.status == 0
    printed = yaml.safe_load(done.out)
    assert (printed["norm"]["name"], printed["max_steps"], printed["scale"]) == ("ln", 4, "demo")
    assert not bench.results.exists()


# --- mistakes on the command line


def config_dir(root: Path) -> Path:
    """Return a folder of norm configs, each with a mistake."""
    (root / "norm").mkdir()
    files = {
        "missing": "_target_: nowhere.Missing\nname: missing\nimpl: eager\n",
        "no_norm": "_target_: collections.OrderedDict\nname: no_norm\nimpl: eager\n",
        "no_class": "name: no_class\n",
        "a_list": "- 1\n",
        "broken": "name: [x\n",
    }
    for name, content in files.items():
        (root / f"norm/{name}.yaml").write_text(content)
    return root


OUTSIDE = ("--config-dir", "DIR")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm=rmss"], "norm=rmss is not known; did you mean rms? (one of bn, derf, dyt, l2, ln, mean_only_bn,"),
        (
            ["task=foo"],
            "task=foo is not known (one of attentive_reader, cifar10, language_model, order_embedding, rnnsearch,",
        ),
        (["scale=huge"], "scale=huge is not known (one of demo, large, medium, paper, small)"),
        (["-m", "norm=rms,rmss"], "norm=rmss is not known; did you mean rms?"),
        (["norm=layernorme"], "norm=layernorme is not known; did you mean layernorm?"),
        (["norm=null"], "norm takes one of bn, derf,"),
        (["norm=[rms,ln]"], "norm takes one of bn, derf,"),
        (["norm=prms", "norm.p=0"], "norm.p must lie in (0, 1], got 0.0"),
        (["norm=prms", "norm.p=1.5"], "norm.p must lie in (0, 1], got 1.5"),
        (["norm.p=0.5"], "norm=rms has no option norm.p (norms that have it: prms)"),
        (["norm.epps=1"], "norm.epps is not known; did you mean norm.eps? (norm=rms has norm.name, norm.impl,"),
        (["norm.axes=2"], "norm.axes must be a list, in brackets: norm.axes=[2]"),
        (["norm=bn", "norm.impl=fused"], "norm=bn has no fused form; use norm.impl=eager"),
        (["norm.name=mine"], "norm.name cannot be set; choose another norm with norm="),
        (["optim.lr=abc"], "optim.lr: Value 'abc' of type 'str' could not be converted to Float"),
        (["optim.lr=-1"], "optim.lr must be a finite number greater than 0, got -1.0"),
        (["optim=3"], "optim is a group of keys; set a single key (optim.lr, optim.beta2, optim.eps,"),
        (["~optim.lr"], "~optim.lr: a value can be set, but not removed"),
        (["seed=0.5"], "seed: Value '0.5' of type 'float' could not be converted to Integer"),
        (["lr=0.1"], "lr is not known; did you mean optim.lr?"),
        (["epochs=3"], "epochs is not known; write max_steps=N (the run ends there) or schedule.steps=N (the whole"),
        (["trainer.max_epochs=3"], "trainer.max_epochs is not known; write max_steps=N"),
        (["learning_rate=0.1"], "learning_rate is not known; write optim.lr\n"),
        (["n_steps=5"], "n_steps is not known; write max_steps=N"),
        (["bs=8"], "bs is not known; write batch_size\n"),
        (["gpus=2"], "gpus is not known; write device=cuda; for several GPUs torchrun --nproc-per-node=N -m rmsexp"),
        (["wandb=true"], "wandb is not known; write logger=wandb\n"),
        (["seeds=0,1"], "seeds is not known; write -m seed=0,1,2\n"),
        (["dataset=mnist"], "dataset is not known; write data.name (other data for the task) or task\n"),
        (["weight_decay=0.1"], "weight_decay is not known; write optim.lr and the like: this task has no weight decay"),
        (["task=language_model", "wd=0.1"], "wd is not known; write optim.weight_decay\n"),
        (["model=resnet"], "model is a group of keys; set a single key (model.width,"),
        (["seed=0..3"], "to Integer; for several runs write -m seed=0,1,2,3\n"),
        (["seed=0-3"], "to Integer; for several runs write -m seed=0,1,2,3\n"),
        (["-m", "seed=0..20"], "to Integer; for several runs write -m seed=range(0,21)\n"),
        (["seed=[0,1,2]"], "to Integer; for several runs write -m seed=0,1,2\n"),
        (["seed=range(0..3)"], "(for several runs write -m seed=0,1,2)"),
        (["seed=range(3)"], "seed=range(3) names several runs: add -m for a sweep"),
        (["optim.lr=[1e-3,2e-3]"], "to Float; for several runs write -m optim.lr=0.001,0.002\n"),
        (["norm.axes=1..3"], "norm.axes must be a list, in brackets: norm.axes=[1,2,3]"),
        (["sede=1"], "sede is not known; did you mean seed?"),
        (["-m", "hydra/launcher=slurmy"], "hydra/launcher=slurmy is not known; did you mean slurm? (one of basic,"),
        (["-m", "hydra/sweeper=optune"], "hydra/sweeper=optune is not known; did you mean optuna?"),
        (["-m", "hydra/launcher=slurm", "sede=1"], "sede is not known; did you mean seed?"),
        (["+sede=1"], "sede is not known; did you mean seed?"),
        (["++model.widht=1"], "model.widht is not known; did you mean model.width?"),
        (["data.root="], "data.root must not be empty"),
        (["max_steps=0"], "max_steps must be at least 1, got 0"),
        (["device=tpu"], "device=tpu is not known"),
        (["model.width=0.001"], "model.width=0.001 leaves no channel; it must be more than 0.0052"),
        (["norm=rms,ln"], "norm=rms,ln names several runs: add -m for a sweep"),
        (["-m", "norm=glob(x*)"], "norm=glob(x*) has no values"),
        (["-m", "optim.lr=interval(0.1,0.2)"], "interval(0.1,0.2): write the values with commas between them"),
        (["rms"], "'rms' is no GROUP=CHOICE and no KEY=VALUE ("),
        (["a=b=c"], "'a=b=c' is no GROUP=CHOICE and no KEY=VALUE ("),
        (["--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["--config-dir", ""], "--config-dir  is not a folder"),
        (["-cn", "x"], "--config-name is not supported; --config-dir DIR adds a folder of configs"),
        (["--config-path", "/x"], "--config-path is not supported; --config-dir DIR adds a folder of configs"),
        (["--experimental-rerun", "x"], "--experimental-rerun is not supported"),
        (["-p", "norm"], "--package and --resolve have an effect together with --cfg only"),
        (["-m", "--resolve"], "--package and --resolve have an effect together with --cfg only"),
        (["-m", "-c", "job"], "-m does not go with --run, --cfg and --info, which are about one run"),
        (["--cfg"], "argument -c/--cfg: expected one argument"),
        (["--cfg", "job", "norm=rmss"], "norm=rmss is not known; did you mean rms?"),
        (["--cfg", "job", "sede=1"], "sede is not known; did you mean seed?"),
        (
            ["--shell-completion"],
            "Hydra refuses its own options and keys, hydra.… (ValueError: Expecting one subcommand",
        ),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["seed=" + "9" * 100_000], "is too long (at most 4000 characters and 20 levels of brackets)"),
        (["-m", "seed=range(0,0)"], "seed=range(0,0) has no values"),
        (["-m", "seed=range(0,3,0)"], "seed=range(0,3,0): write the values with commas between them"),
        (["-m", "seed=range(0,1000000000)"], "seed=range(0,1000000000) has too many values"),
        (["-m", "seed=range(0,9000)", "norm=ln,rms"], "these are 18000 runs; a sweep has at most 10000"),
        (["--run", "sweep=lr"], "--run is about one run, and these words make a sweep; leave out --run"),
        (["distributed.timeout=1e15"], "distributed.timeout must be at most"),
        (["-m", "hydra.job.chdir=true"], "hydra.job.chdir=true would change the folder"),
        (["-m", "hydra.job.chdir=???"], "hydra.job.chdir has no value (??? stands for a missing one)"),
        (["-m", "hydra.sweeper.params={norm:rms}"], "Hydra fails at these words (AttributeError: "),
        (["-m", "hydra.sweeper.params.seed=1"], "Unexpected type for root: NoneType"),
        (["-m", "hydra.mode=RUN"], "hydra.mode=RUN has no effect: -m makes a sweep"),
        (["hydra.run.dir=x"], "hydra.run.dir=x has no effect: results=DIR sets the folder of results"),
        (["--norm", "rms"], "a value of the config has no dashes: write norm=rms"),
        (["--max_steps=20"], "a value of the config has no dashes: write max_steps=20"),
        (["+logger.wandb.api_key=secret"], "logger.wandb.api_key is not known"),
        (["model.init=???"], "model.init has no value"),
        (
            [*OUTSIDE, "norm=missing"],
            "norm=missing: _target_ nowhere.Missing cannot be imported (No module named 'nowhere')",
        ),
        (
            [*OUTSIDE, "norm=no_norm"],
            "_target_ collections.OrderedDict is not a dataclass derived from rmsexp.norms.Norm",
        ),
        ([*OUTSIDE, "norm=no_class"], "the norm's file names no class"),
        ([*OUTSIDE, "norm=a_list"], "the norm's file names no class"),
        ([*OUTSIDE, "norm=broken"], "norm/broken.yaml"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_mistake_is_reported_in_one_line(words: list[str], message: str, bench: Bench, tmp_path: Path) -> None:
    outside = str(config_dir(tmp_path))
    done = bench(*(outside if word == "DIR" else word for word in words))
    done.assert_refused(message)
    assert not bench.results.exists()


def test_a_value_for_each_run_that_the_shell_makes_several_words_of_is_reported(bench: Bench) -> None:
    """As of seed={0,1}, of which the last word alone would count."""
    done = bench("seed=0", "seed=1", "max_steps=0")
    warning = "rmsexp: seed is given 2 times, of which seed=1 counts; for a run with each, write -m seed=0,1\n"
    assert done.err.startswith(warning)


@pytest.mark.parametrize("command", ["norm=mine", "-m norm=ln,mine", "norm=mine --config-dir own/norm"])
def test_a_forgotten_folder_of_own_configs_is_named(
    command: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own" / "norm" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: mine\n")
    bench(*command.split()).assert_refused("norm=mine is not known; add --config-dir own, which has norm/mine.yaml")


@pytest.mark.parametrize("word", ["hydra.sweeper.max_batch_size=0", "hydra.launcher.n_jobs=0"])
def test_a_value_that_hydra_cannot_use_is_reported_in_one_line(word: str, bench: Bench) -> None:
    launcher = ["hydra/launcher=joblib"] if "launcher" in word else []
    bench("-m", *launcher, word, "norm=rms,ln").assert_refused("Hydra refuses its own options and keys, hydra.… (")
    assert not list(record.find_runs(bench.results))


@pytest.mark.parametrize("words", [("--help",), ("--hel",), ("norm=ln", "-h"), ("-m", "--help", "seed=0,1")])
def test_help_may_be_abbreviated_and_stand_anywhere(words: Sequence[str], bench: Bench) -> None:
    done = bench(*words)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("rmsexp trains a task")
    assert not bench.results.exists()


def test_flags_may_stand_anywhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(
        "rmsexp.work.runner.execute", lambda job, _: order.append(job.series) or runner.Outcome("failed", 0)
    )
    bench("norm=rms,ln", "-m", "seed=0")
    assert order == ["rms", "ln"]
    assert bench("norm=ln", "--cfg", "job", "seed=0").status == 0


def test_a_file_in_the_place_of_results_is_refused(bench: Bench) -> None:
    bench.results.write_text("a file")
    for flag in ([], ["-m"]):
        done = bench(*flag)
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith("rmsexp: results=")
        assert done.err.endswith("is a file; name a folder\n")


def test_a_folder_of_results_in_the_config_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    """Hydra would take each folder in ``--config-dir`` for a group of configs."""
    (tmp_path / "results").mkdir()
    done = bench("--config-dir", str(tmp_path))
    done.assert_refused(f"results cannot be set, since --config-dir {tmp_path} has a folder of that name\n")
