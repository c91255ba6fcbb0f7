"""``python -m rmsexp.generate RUN --prompt TEXT``: continue a text with a trained language model."""

import sys
from collections.abc import Sequence

from rmsexp.config import classes
from rmsexp.config.schema import LARGEST_SEED
from rmsexp.system.command_line import Parser, add_model_arguments, entry_point, inform, number


@entry_point
def main(argv: Sequence[str]) -> int:
    """Write the prompt and its continuation to standard output."""
    parser = Parser(prog="python -m rmsexp.generate", description=__doc__)
    add_model_arguments(parser, "results/language_model/demo/rms/seed0")
    parser.add_argument("--prompt", default="", help="the text to continue (default: the beginning of a line)")
    parser.add_argument("--tokens", type=number(int, 1, 1_000_000), default=200, help="number of new tokens (200)")
    temperature_help = "divides the logits; 0 takes the most probable token each time (default: %(default)s)"
    parser.add_argument("--temperature", type=number(float, 0.0), default=1.0, help=temperature_help)
    parser.add_argument("--seed", type=number(int, 0, LARGEST_SEED), default=0, help="seed of the random choices (0)")
    arguments = parser.parse_args(argv)
    import torch

    from rmsexp.tasks.language_model import Task
    from rmsexp.train.step import autocast
    from rmsexp.work import trained

    classes.load_own(arguments.config_dir, arguments.norm_class)
    device = torch.device(arguments.device)
    task, model, step = trained.load(arguments.run, Task, device, inform, which=arguments.checkpoint)
    inform(f"generating {arguments.tokens} tokens with the model of step {step}")
    with autocast(task.config.precision, device):
        text = task.generate(model, arguments.prompt, arguments.tokens, arguments.temperature, arguments.seed)
    sys.stdout.buffer.write(f"{arguments.prompt}{text}\n".encode())
    return 0
