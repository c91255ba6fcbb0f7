"""``python -m rmsexp.translate RUN < in > out``: translate lines of text with a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rmsexp.command_line import Parser, documentation, entry_point, report


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        _translate(arguments)
    except UnicodeDecodeError as error:
        report(f"the input is not UTF-8 (byte {error.start})")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m rmsexp.translate", description=documentation(__file__))
    parser.add_argument("run", type=Path, help="the run's folder, such as results/transformer/demo/rms/seed0")
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        default="best",
        help="the checkpoint to use: the best on the validation set, or the last (default: %(default)s)",
    )
    parser.add_argument("--beam", type=int, help="beam size, 1 for greedy search (default: as in the run's config)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


def _translate(arguments: argparse.Namespace) -> None:
    """Translate the lines of standard input, and write one line for each to standard output.

    Raises: ConfigError for a beam size below 1; ConfigError, CheckpointError, DataError, ValueError or OSError if the
    run cannot be loaded; UnicodeDecodeError if the input is not UTF-8.
    """
    import torch

    from rmsexp import config, trained
    from rmsexp.tasks.translation import TranslationTask
    from rmsexp.train.step import autocast

    if arguments.beam is not None and arguments.beam < 1:
        raise config.ConfigError(f"--beam must be at least 1, got {arguments.beam}")
    device = torch.device(arguments.device)
    task, model, step = trained.load(arguments.run, TranslationTask, device, _report, which=arguments.checkpoint)
    text = sys.stdin.buffer.read().decode("utf-8")
    lines = text.removesuffix("\n").split("\n") if text else []
    _report(f"translating {len(lines)} lines with the model of step {step}")
    with autocast(task.config.precision, device):
        translations = task.translate(model, lines, arguments.beam or task.config.decoding.beam)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())


def _report(message: str) -> None:
    print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
