"""What all commands share: the parser of their options, messages about mistakes and failures, and exit statuses."""

import argparse
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rmsexp.system import process

PLACES = ("results=", "data.root=", "--results", "--folder", "--data-root", "--records")
LONGEST_MESSAGE = 1000  # characters; a command with paths, or several paths and addresses, takes some hundreds
# what Hydra takes for null, a truth value or a number
NO_TEXT = re.compile(r"null|true|false|[+-]?(nan|inf|[\d_.]*\d[\d_.]*(e[+-]?[\d_]+)?)", re.ASCII | re.IGNORECASE)

Number = TypeVar("Number", int, float)


class ReportedError(Exception):
    """An error that a command reports by its message. ``exit_status``: the exit status of the command."""

    exit_status = 1


class ConfigError(ReportedError, ValueError):
    """A mistake in a config or on the command line; the message names the mistake and, where possible, valid values."""

    exit_status = 2


REPORTED = (ReportedError, ValueError, OSError)  # errors that are reported by their message, and not by a traceback


class Parser(argparse.ArgumentParser):
    """A command-line parser that reports a mistake without the usage, and exits with status 2.

    Its description, the docstring of the command's module, is shown as it is.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        report(message)
        self.exit(2)

    def add_config_dir(self, help: str = "a folder of your own configs, such as norms and tasks") -> None:
        self.add_argument("-cd", "--config-dir", metavar="DIR", help=help)


def number(kind: type[Number], least: float, most: float = sys.float_info.max) -> Callable[[str], Number]:
    """Return the ``type`` of an argument that is a number of a kind, at least ``least`` and at most ``most``."""

    def parse(text: str) -> Number:
        value = kind(text)
        if not least <= value <= most:
            limit = f" and at most {most}" if most < sys.float_info.max else ""
            raise argparse.ArgumentTypeError(f"must be at least {least}{limit}, got {text}")
        return value

    parse.__name__ = kind.__name__  # which argparse prints for a text that is no number
    return parse


def config_dir_words(config_dir: str | None) -> list[str]:
    """Return the words of a command line that name a folder of own configs; none if there is no folder."""
    return [] if config_dir is None else ["--config-dir", config_dir]


def add_model_arguments(parser: Parser, example: str) -> None:
    """Add the arguments about a trained model: its run, such as ``example``, checkpoint, device and own classes."""
    parser.add_argument("run", type=Path, help=f"the run's folder, such as {example}")
    checkpoint = "the checkpoint to use: the best on the validation set, or the last (default: %(default)s)"
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best", help=checkpoint)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    add_own_classes(parser)


def add_own_classes(parser: Parser) -> None:
    """Add the arguments that name classes which recorded configs may use (:func:`rmsexp.config.classes.load_own`)."""
    parser.add_config_dir("import the norms and tasks whose configs are in this folder, if you trust their code")
    parser.add_argument("--norm-class", metavar="MODULE.CLASS", help="import only this class, the norm of the run")


def entry_point(main: Callable[..., int]) -> Callable[..., int]:
    """Return the function of a command: it calls ``main``, reports errors, and returns the exit status.

    ``main``: gets the list of words of the command line, by default that of the process, and returns the exit status.

    The status is 2 for a mistake on the command line, 1 if the command fails, and 128 plus the number of a signal
    that stops it, so 130 after Ctrl-C. Errors that are neither ReportedError, ValueError nor OSError, nor about memory,
    are mistakes in the program; they are not caught.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        process.open_output()
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C raises KeyboardInterrupt from now on
        try:
            status = main(sys.argv[1:] if argv is None else list(argv))
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader has ended, as in "… | head"
            return 1
        except REPORTED as error:
            report(error)
            return getattr(error, "exit_status", 1)
        except (MemoryError, RuntimeError) as error:
            message = memory_message(error)
            if message is None:
                raise
            report(message)
            return 1
        except process.Interrupted as stop:
            report(stop)
            return 128 + stop.signum
        except KeyboardInterrupt:
            report("interrupted")
            return 130

    return run


def memory_message(error: Exception) -> str | None:
    """Return the message about an error that is due to too little memory; None for any other error."""
    text = str(error).partition("\n")[0]
    # PyTorch raises RuntimeError for the memory of a CPU, and a class derived from it for the memory of a GPU
    about_memory = isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    if not about_memory and not isinstance(error, MemoryError):
        return None
    return brief(f"too little memory ({text}); choose smaller sizes, such as a smaller batch")


def report(message: object) -> None:
    """Print a message about a mistake or a failure, shortened, to the standard error stream."""
    print(f"rmsexp: {brief(message)}", file=sys.stderr)


def inform(line: str) -> None:
    """Print a line, such as progress or a notice, to the standard error stream."""
    print(line, file=sys.stderr, flush=True)


def brief(message: object) -> str:
    """Return a message, or that of an error, in at most two lines and ``LONGEST_MESSAGE`` characters.

    If it is longer, the middle of long paths and values is left out, so that names of files remain; if that is not
    enough, the middle of the message. Characters that cannot be printed are escaped.
    """
    first, *others = [line.strip() for line in str(message).splitlines() if line.strip()] or [type(message).__name__]
    lines = [first, " ".join(others)] if others else [first]
    text = "\n".join("".join(char if char.isprintable() else ascii(char)[1:-1] for char in line) for line in lines)
    if len(text) > LONGEST_MESSAGE:
        text = re.sub(r"\S{80,}", lambda word: f"{word[0][:30]}…{word[0][-49:]}", text)
    end = LONGEST_MESSAGE // 3
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - end - 1]}…{text[-end:]}"


def command(module: str, *words: str) -> str:
    """Return the command ``python -m MODULE WORDS`` as it is typed in the shell that started this process.

    If ``python`` is another interpreter there, because the environment is not active, this one's path takes its place.
    """
    found, here = shutil.which("python"), Path(sys.executable)
    python = str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)
    if found is not None and Path(found).absolute().parent == here.parent:
        python = "python"
    return shlex.join([python, "-m", module, *words])


def recorded(words: Sequence[str]) -> str:
    """Return a command line for a record: without the words that say where files lie on this machine (``PLACES``)."""
    following = itertools.pairwise(("", *words))  # the value of --results DIR is the word after it
    return shlex.join(word for before, word in following if before not in PLACES and not word.startswith(PLACES))


def value_word(key: str, value: object) -> str:
    """Return the word ``key=value`` with which Hydra sets a key to a value of Python; text arrives unchanged.

    ``value``: a text, path, number, truth value, None, or list or dict of them. Raises: TypeError if JSON cannot hold
    it.
    """
    return f"{key}={_literal(value)}"


def _literal(value: object) -> str:
    """Return a value as it is written in Hydra's grammar; text has quotes if Hydra would not take it as it is."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_literal(each)}" for key, each in value.items()) + "}"
    if not isinstance(value, str | Path):
        return json.dumps(value).replace("Infinity", "inf")
    text = str.__str__(value) if isinstance(value, str) else str(value)
    if re.fullmatch(r"[\w./+-]+", text, re.ASCII) and not NO_TEXT.fullmatch(text):
        return text
    # a backslash before a quote, or at the end, is doubled
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: 2 * match[1] + (match[2] and r"\'"), escaped(text)) + "'"


def escaped(value: Any) -> Any:
    """Return a value with each ``${`` of its texts as ``\\${``, so that OmegaConf resolves no reference in them."""
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escaped(each) for each in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def duration(seconds: float) -> str:
    """Return a duration in minutes and seconds, or in hours, minutes and seconds, such as "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
