"""``python -m rmsexp.translate RUN < in > out``: translates lines of text with a trained run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rmsexp.translate", description=__doc__)
    parser.add_argument("run", type=Path, help="the run's folder, such as results/transformer/demo/rms/seed0")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best", help="best on the validation set")
    parser.add_argument("--beam", type=int, help="as in the run's config unless set; 1 is greedy search")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()

    import torch

    from rmsexp import config, trained
    from rmsexp.data import DataError
    from rmsexp.tasks.translation import TranslationTask
    from rmsexp.train.checkpoint import CheckpointError
    from rmsexp.train.step import autocast

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    try:
        if arguments.beam is not None and arguments.beam < 1:
            raise config.ConfigError(f"--beam must be at least 1, got {arguments.beam}")
        device = torch.device(arguments.device)
        task, model, step = trained.load(arguments.run, TranslationTask, device, say, which=arguments.checkpoint)
        text = sys.stdin.buffer.read().decode("utf-8")
        lines = text.removesuffix("\n").split("\n") if text else []
        say(f"{len(lines)} lines, the model of step {step}")
        with autocast(task.config.precision, device):
            translations = task.translate(model, lines, arguments.beam or task.config.decoding.beam)
        sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())
    except config.ConfigError as error:
        say(f"rmsexp: {error}")
        return 2
    except UnicodeDecodeError as error:
        say(f"rmsexp: the input is not UTF-8 (byte {error.start})")
        return 1
    except (CheckpointError, DataError, ValueError, OSError) as error:
        say(f"rmsexp: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
