"""``python -m rmsexp.translate RUN < in > out``: translate lines of text with a trained model."""

import sys
from collections.abc import Sequence

from rmsexp.config import classes
from rmsexp.system.checks import LARGEST_BEAM
from rmsexp.system.command_line import Parser, add_model_arguments, entry_point, inform, number


@entry_point
def main(argv: Sequence[str]) -> int:
    """Translate the lines of standard input, and write one line for each to standard output."""
    parser = Parser(prog="python -m rmsexp.translate", description=__doc__)
    add_model_arguments(parser, "results/transformer/demo/rms/seed0")
    beam_help = f"beam size, 1 for greedy search, at most {LARGEST_BEAM} (default: as in the run's config)"
    parser.add_argument("--beam", type=number(int, 1, LARGEST_BEAM), help=beam_help)
    arguments = parser.parse_args(argv)
    import torch

    from rmsexp.tasks.translation import TranslationTask
    from rmsexp.train.step import autocast
    from rmsexp.work import trained

    classes.load_own(arguments.config_dir, arguments.norm_class)
    device = torch.device(arguments.device)
    task, model, step = trained.load(arguments.run, TranslationTask, device, inform, which=arguments.checkpoint)
    text = sys.stdin.buffer.read().decode("utf-8-sig")  # without a byte order mark
    lines = text.removesuffix("\n").split("\n") if text else []
    inform(f"translating {len(lines)} lines with the model of step {step}")
    with autocast(task.config.precision, device):
        translations = task.translate(model, lines, arguments.beam or task.config.decoding.beam)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())
    return 0
