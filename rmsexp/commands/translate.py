"""``python -m rmsexp.translate RUN < in > out``: translate lines of text with a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmsexp.system.checks import LARGEST_BEAM
from rmsexp.system.command_line import Parser, add_model_arguments, entry_point, inform


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    _translate(_parser().parse_args(argv))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m rmsexp.translate", description=__doc__)
    add_model_arguments(parser, "results/transformer/demo/rms/seed0")
    beam_help = f"beam size, 1 for greedy search, at most {LARGEST_BEAM} (default: as in the run's config)"
    parser.add_argument("--beam", type=int, help=beam_help)
    return parser


def _translate(arguments: argparse.Namespace) -> None:
    """Translate the lines of standard input, and write one line for each to standard output.

    Raises: ConfigError for an invalid beam size or class; ConfigError, CheckpointError, DataError, ValueError or
    OSError if the run cannot be loaded; ValueError or OSError if the text cannot be read or written.
    """
    import torch

    from rmsexp import config
    from rmsexp.config import classes
    from rmsexp.system import process
    from rmsexp.tasks.translation import TranslationTask
    from rmsexp.train.step import autocast
    from rmsexp.work import trained

    if sys.stdin is None or "standard output" in process.output_failures():
        raise OSError("standard input or output is closed; use python -m rmsexp.translate RUN < text > translations")
    if arguments.beam is not None and not 1 <= arguments.beam <= LARGEST_BEAM:
        raise config.ConfigError(f"--beam must be from 1 to {LARGEST_BEAM}, got {arguments.beam}")
    classes.load_own(arguments.config_dir, arguments.norm_class)
    device = torch.device(arguments.device)
    task, model, step = trained.load(arguments.run, TranslationTask, device, inform, which=arguments.checkpoint)
    lines = _lines()
    inform(f"translating {len(lines)} lines with the model of step {step}")
    with autocast(task.config.precision, device):
        translations = task.translate(model, lines, arguments.beam or task.config.decoding.beam)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())
    sys.stdout.buffer.flush()


def _lines() -> list[str]:
    """Return the lines of standard input, without a byte order mark.

    Raises: ValueError if it is not UTF-8; OSError if it cannot be read.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the input is not UTF-8 (byte {error.start})") from None
    return text.removesuffix("\n").split("\n") if text else []
