"""The command ``rmsexp`` (also ``python -m rmsexp``): call the command that the first word names, or do runs.

It does runs if there are no words, or if the first word is a flag or an override such as norm=ln.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from rmsexp.system.checks import nearest
from rmsexp.system.command_line import entry_point, report

# ``rmsexp NAME`` calls main(argv) of the module rmsexp.commands.NAME; configs/hydra/help/rmsexp.yaml has their help.
COMMANDS = (
    *("campaign", "timing", "bench", "report", "status", "analysis"),
    *("translate", "generate", "prepare", "swap"),
)


@entry_point
def main(words: Sequence[str]) -> int:
    """Run the command line ``words``, by default that of the process, and return its exit status."""
    if not words or words[0].startswith(("-", "+", "~")) or "=" in words[0]:
        from rmsexp.commands import run

        return run.main(words)
    name, *arguments = words
    if name not in COMMANDS:
        from rmsexp import config

        choices = [f"{group}={name}" for group in ("task", "norm", "scale", "sweep") if name in config.options(group)]
        hint = f"; did you mean {choices[0]}?" if choices else nearest(name, COMMANDS)
        report(f"{name!r} is no command and no KEY=VALUE{hint} (commands: {', '.join(COMMANDS)})")
        return 2
    # import only this command, so that rmsexp --help and rmsexp report do not load torch
    module = import_module(f"rmsexp.commands.{name}")
    status: int = module.main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
