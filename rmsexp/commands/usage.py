"""The help of ``rmsexp``: its commands, the groups of configs with their choices, common keys, and examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rmsexp import config

# The commands other than runs, with their help. ``rmsexp NAME`` calls main(argv) of the module rmsexp.commands.NAME.
COMMANDS = {
    "campaign": "do all runs that answer a question, tuned alike for every norm, and decide its claims",
    "timing": "time training steps with several norms, interleaved, to compare what the norms cost",
    "bench": "time norm layers and recurrent layers alone, interleaved",
    "report": "write tables, figures and one page about all runs below a folder",
    "status": "show the state of campaigns and runs: step, time left, failures",
    "analysis": "compute the paper's analyses, such as the invariances of Table 1",
    "translate": "translate lines of text with a trained model",
    "generate": "continue a text with a trained language model",
    "prepare": "download, verify and preprocess the data set of a run",
    "published": "draw the authors' published logs beside your runs, or evaluate their model",
}
EXAMPLES = (
    ("python -m rmsexp", "RMSNorm on synthetic images like CIFAR-10's; about a minute"),
    ("python -m rmsexp task=cifar10 norm=ln", "the same with LayerNorm; the figure then shows both norms"),
    ("python -m rmsexp -m norm=none,ln,rms,prms,bn,wn seed=0,1", "a sweep: six norms, two seeds"),
    ("python -m rmsexp task=transformer scale=small data.root=~/data", "translation, on the real Multi30k"),
    ("python -m rmsexp norm=prms norm.p=0.25 optim.lr=0.001", "any value of the config can be set by its key"),
    ("python -m rmsexp scale=paper data.root=~/data", "the paper's own setting, on real data"),
)
KEYS = (
    ("seed", "seed of all random numbers: initial weights, order of the examples, noise"),
    ("max_steps", "number of training steps; a larger number continues a finished run"),
    ("device, threads, precision", "auto, cpu or cuda; number of CPU threads; float32, bfloat16 or float16"),
    ("micro_batches", "number of parts of a step's batch, computed one after the other (transformer: accumulate)"),
    ("compile", "true: use torch.compile; the time axis of the curves excludes the warm-up, which compiles the model"),
    ("data.root", "the folder of all data sets"),
    ("results", "the folder of all results"),
    ("force", "true: start a new run and keep the old one beside it"),
    ("norm.impl", "eager: elementary PyTorch operations, as in the paper; fused: kernels for norms and recurrences"),
)


def help_text(config_dir: str | None = None) -> str:
    """Return the help: commands, groups with their choices, keys that every task has, and examples.

    The choices include those in ``config_dir``, the folder of ``--config-dir``. Raises: ConfigError if it is none.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise config.ConfigError(f"--config-dir {config_dir} is not a folder")
    lines = [
        "rmsexp trains a task, such as the paper's five, with any norm, and draws loss against steps and against time.",
        "",
        "usage: rmsexp [-m] [-q] [--config-dir DIR] [GROUP=CHOICE ...] [KEY=VALUE ...]",
        "       rmsexp COMMAND ...",
        "  rmsexp is short for python -m rmsexp. -m does a run for every combination of comma-separated values.",
        "  --config-dir adds a folder of your own configs: norms, tasks with their recipes, campaigns.",
        "  Every command that reads configs takes it; --help lists its choices. -q shows no progress.",
        "  --version prints the version.",
        '  eval "$(rmsexp -sc install=bash)" makes bash complete groups and keys (or zsh, fish).',
        "  Other commands take values as KEY=VALUE, too, and switches as --FLAG.",
        "",
        "commands (rmsexp COMMAND --help explains each; python -m rmsexp.COMMAND does the same):",
        *(f"  {name:20}{meaning}" for name, meaning in COMMANDS.items()),
        "",
        "groups:",
        *_groups(config_dir),
        "",
        "keys that every task has (rmsexp task=cifar10 --cfg job prints all keys, with their values):",
        *(f"  {key:28}{meaning}" for key, meaning in KEYS),
        "",
        "examples:",
        *(f"  {command}\n      {meaning}" for command, meaning in EXAMPLES),
    ]
    return "\n".join(lines)


def _groups(config_dir: str | None) -> Iterator[str]:
    """Yield a line of help for each config group and, except for recipe and pair, for each choice of the group."""
    for group, meaning in config.GROUPS.items():
        yield f"  {group}: {meaning}"
        if group not in ("recipe", "pair"):  # these follow from task, scale and norm
            for name in config.options(group, config_dir):
                yield f"    {name:18}{_first_comment(config.file(group, name, config_dir))}"


def _first_comment(path: Path) -> str:
    comments = (line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
