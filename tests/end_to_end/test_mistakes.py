"""Help, and mistakes on the command line: each is reported in one line."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from helpers.command_bench import Bench
from helpers.tasks import Ended, Main

from rmsexp import __main__ as entry
from rmsexp import config
from rmsexp.config import words as words_module
from rmsexp.records import record

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


CONFIGS_OF_NORMS = {  # the files in DIR, each with a mistake
    "missing": "_target_: nowhere.Missing\nname: missing\nimpl: eager\n",
    "no_norm": "_target_: collections.OrderedDict\nname: no_norm\nimpl: eager\n",
    "no_class": "name: no_class\n",
    "a_list": "- 1\n",
    "broken": "name: [x\n",
}
# the words of a command line -> what its message must name
MISTAKES = """
norm=rmss -> norm=rmss is not known; did you mean rms?
task=foo -> task=foo
scale=huge -> scale=huge
-m norm=rms,rmss -> norm=rmss
norm=layernorme -> did you mean layernorm?
norm=null -> norm takes one of
norm=[] -> norm takes one of
threads=100000 -> threads
seed=9223372036854775808 -> seed
optim.lr=1e39 -> optim.lr
model.width=1e9 -> model.width
optim.clipping=by_root -> optim.clip
norm.epps=1 -> did you mean norm.eps?
norm.axes=2 -> norm.axes
norm=bn norm.impl=fused -> norm.impl=eager
norm.name=mine -> norm.name
optim.lr=abc -> optim.lr
optim=3 -> optim.lr
optim={lr:1,zz:3} -> optim
optim.lr.x=1 -> did you mean optim.lr?
+seed=1 -> seed
optim.lr=${nothing} -> optim.lr
optim.lr=${optim.lr} -> optim.lr
seed=[0,1,2] -> seed
norm.p=0.5 -> norm.p
~optim.lr -> ~optim.lr
seed=0.5 -> seed
lr=0.1 -> did you mean optim.lr?
epochs=3 -> max_steps=N
wandb=true -> logger=wandb
weight_decay=0.1 -> this task has no weight decay
task=language_model wd=0.1 -> optim.weight_decay
model=resnet -> model.width
seed=range(3) -> -m
sede=1 -> did you mean seed?
++model.widht=1 -> did you mean model.width?
-m hydra/launcher=slurmy -> rmsexp[joblib]
data.root= -> data.root
max_steps=0 -> max_steps
device=tpu -> device=tpu
model.width=0.001 -> model.width
norm=rms,ln -> -m
-m norm=glob(x*) -> norm=glob(x*)
-m optim.lr=interval(0.1,0.2) -> interval(0.1,0.2)
rms -> 'rms'
a=b=c -> 'a=b=c'
--config-dir nowhere -> --config-dir nowhere
--config-name x -> --config-name
-p norm -> -p
--cfg -> --cfg
--cfg job norm=rmss -> norm=rmss
--shell-completion -> Hydra refuses
--nothing -> --nothing
-m seed=range(0,0) -> seed=range(0,0)
-m seed=range(0,1000000000) -> more than 10,000 runs
-m seed=range(0,9000) norm=ln,rms -> more than 10,000 runs
-r sweep=lr -> -r
distributed.timeout=1e15 -> distributed.timeout
-m hydra.job.chdir=true -> hydra.job.chdir=true
-m hydra.sweeper.params={norm:rms} -> Hydra fails at these words
-m hydra.sweeper.params.seed=1 -> NoneType
-m hydra.mode=RUN -> hydra.mode=RUN
hydra.run.dir=x -> results=DIR
+logger.wandb.api_key=secret -> logger.wandb.api_key
threads=??? -> threads has no value
norm.axes=[2,???] -> norm.axes[1] has no value
data.root=??? -> data.root has no value
results=??? -> results has no value
--config-dir DIR norm=missing -> nowhere.Missing
--config-dir DIR norm=no_norm -> collections.OrderedDict
--config-dir DIR norm=no_class -> names no class
--config-dir DIR norm=a_list -> names no class
--config-dir DIR norm=broken -> norm/broken.yaml
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_reported_in_one_line(line: str, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    for name, content in CONFIGS_OF_NORMS.items():
        (tmp_path / f"norm/{name}.yaml").write_text(content)
    words, named = line.split(" -> ")
    bench(*(str(tmp_path) if word == "DIR" else word for word in words.split())).assert_refused(named)
    assert not bench.results.exists()


MISTAKES_IN_TASKS = """
cifar10 batch_size=8 micro_batches=9 -> micro_batches
cifar10 micro_batches=0 -> micro_batches
cifar10 batch_size=0 -> batch_size must be at least 1
cifar10 evaluation=score -> evaluation
cifar10 evaluation=scored schedule.steps=19 schedule.period=1 -> schedule.steps=19 is too few for 20 evaluations
cifar10 evaluation=scored -> data.validation
language_model context=1 -> context
language_model data.tokens=words -> data.tokens
language_model data.name=files data.train=a data.valid=b -> data.name=files needs data.test
language_model data.held_out=0 -> data.held_out
language_model data.held_out=20 -> data.held_out
language_model data.vocabulary=1 -> data.vocabulary
language_model data.vocabulary=300 -> data.vocabulary
language_model data.valid=b -> data.valid
language_model model.placement=middle -> model.placement
language_model model.attention_placement=middle -> model.attention_placement
language_model optim.weight_decay=-1 -> optim.weight_decay
language_model schedule.floor=1 -> schedule.floor
language_model model.width=0 -> model.width
language_model model.width=12 model.heads=4 -> model.width
language_model model.layers=0 -> model.layers
language_model model.heads=4 model.kv_heads=3 -> model.kv_heads
language_model model.activation=relu -> model.activation
transformer model.heads=0 -> model.heads
transformer model.heads=3 -> model.heads
transformer model.width=0 -> model.width
transformer model.width=2 model.heads=1 -> model.width
transformer model.width=15 model.heads=5 -> model.width
transformer tokens=0 -> tokens
transformer model.dropout=1 -> model.dropout
transformer model.attention_dropout=-0.1 -> model.attention_dropout
transformer model.relu_dropout=nan -> model.relu_dropout
transformer model.inner=0 -> model.inner
transformer model.layers=0 -> model.layers
transformer model.layers=100000000 -> model.layers
transformer micro_batches=2 -> accumulate
transformer decoding.alpha=1000 -> decoding.alpha
transformer decoding.alpha=-1 -> decoding.alpha
transformer decoding.beam=0 -> decoding.beam
transformer decoding.normalisation=lenght -> decoding.normalisation
transformer decoding.search=zero -> decoding.search
rnnsearch tokens=100 -> tokens
rnnsearch label_smoothing=1 -> label_smoothing
rnnsearch decoding.max_length=null -> decoding.max_length
rnnsearch decoding.beam=1000000000 -> decoding.beam
rnnsearch model.init_center=nan -> model.init_center
rnnsearch model.init=lecun -> model.init
rnnsearch data.name=multi30 -> did you mean multi30k?
rnnsearch data.tests=test -> data.tests
rnnsearch data.tests=[test2017] -> data.tests
rnnsearch data.threshold=5 -> data.threshold
rnnsearch data.vocabulary=1 -> data.vocabulary
rnnsearch data.overlong=keep -> data.overlong
rnnsearch data.subwords=sentencpiece -> did you mean sentencepiece
rnnsearch data.subwords=moses_bpe data.threshold=-1 -> data.threshold must be at least 0
rnnsearch data.max_length=0 -> data.max_length
attentive_reader model.width=1 -> model.width
attentive_reader data.sentences=null -> data.sentences
attentive_reader data.entities=9 -> data.entities
attentive_reader scale=medium data.name=stories -> write data.validation=null
order_embedding scale=small data.name=scenes -> write data.features=vgg19
order_embedding penalty=cosin -> did you mean cosine?
order_embedding margin=0 -> margin
order_embedding batch_size=1 -> batch_size
order_embedding data.features=vgg -> data.features
order_embedding data.fold=0 -> data.fold
order_embedding optim.bias_correction=none -> optim.bias_correction
order_embedding model.dropout=0.5 -> model.dropout
"""


@pytest.mark.parametrize("line", MISTAKES_IN_TASKS.strip().splitlines())
def test_a_mistake_in_the_options_of_a_task_is_reported_in_one_line(line: str, main: Main, tmp_path: Path) -> None:
    words, named = line.split(" -> ")
    main(*f"task={words}".split()).assert_refused(named)
    assert not (tmp_path / "results").exists()


# the words of other commands; DIR is an empty folder
MISTAKES_OF_COMMANDS = """
timing norm=ln -> norms=[ln,rms]
timing max_steps=10 -> max_steps=10
timing norms=[ln,ln+eps=1e-6] -> ln twice
timing norms=[[ln]] -> norms
timing norms=[] -> norms
timing norms={a:1} -> norms
timing norms=[ln,rms -> flow sequence
timing norms=${nothing} -> norms
timing impl=fused -> impl
timing norms=[ln,rms+model.width=0.5] -> norms
timing norms=[none,rms] -> timing.reference=ln
timing norms=[ln,rms+p=0.5] -> norm.p
timing impl=[quick] -> norm.impl=quick
timing timing.budge=1 -> did you mean timing.budget?
timing timing.budget=0 -> timing.budget
timing timing.budget=??? -> timing.budget
timing timing.processes=0 -> timing.processes
timing timing.target_width=-1 -> timing.target_width
timing --calib -> --calibrate
bench -> WHAT
bench norm -> 'norm'
bench norms --shapes 64y240 -> 64y240
bench norms --threads 100000 -> --threads
bench norms --shapes 2x3 2x3 -> 2x3 twice
bench recurrences --shapes 5x8x5x10 -> CELL-TIMExBATCHxINxHIDDEN
bench recurrences --dtype float64 -> --dtype
bench norms --seconds nan -> --seconds
generate DIR --tokens 0 -> --tokens
generate DIR --temperature -1 -> --temperature
generate DIR --temperature nan -> --temperature
generate DIR --seed -1 -> --seed
generate DIR -> config.yaml
translate -> run
translate DIR --beam 0 -> --beam
translate DIR --beam 999999999999999999999999999999 -> --beam
translate DIR --beam x -> --beam
translate DIR --checkpoint first -> --checkpoint
translate DIR --norm-class nowhere.Norm -> nowhere.Norm
translate DIR/nowhere -> name the folder of a run
campaign table2 --jobs 0 -> --jobs
campaign table2 --jobs 2 hydra.launcher.n_jobs=4 -> use --jobs
campaign check DIR --plan -> leave out --plan
"""


@pytest.mark.parametrize("line", MISTAKES_OF_COMMANDS.strip().splitlines())
def test_a_mistake_in_the_words_of_another_command(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, named = line.split(" -> ")
    try:
        status = entry.main([word.replace("DIR", str(tmp_path)) for word in words.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    Ended(status, *capsys.readouterr()).assert_refused(named)
    assert not list(tmp_path.iterdir())


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


def test_a_folder_of_results_in_the_config_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    """Hydra would take each folder in ``--config-dir`` for a group of configs."""
    (tmp_path / "results").mkdir()
    done = bench("--config-dir", str(tmp_path))
    done.assert_refused(f"results cannot be set, since --config-dir {tmp_path} has a folder of that name\n")
