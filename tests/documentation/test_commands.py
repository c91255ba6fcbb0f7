"""The commands in the documents have valid arguments, and their overrides compose to valid configs. None is run."""

import argparse
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from helpers import documents

from rmsexp import __main__ as entry
from rmsexp import config
from rmsexp.campaign import items
from rmsexp.commands import run, summary, timing
from rmsexp.config import identity
from rmsexp.config import words as words_module

COMMANDS = sorted({command for document in documents.DOCUMENTS for command in documents.commands(document)})
SHELL = {"<", ">", "|", "||", "&&", ";"}


class Parsed(Exception):
    """Raised when the arguments of a command have been accepted, so that the command does not run."""


def words_of(command: str) -> list[str]:
    """Return the words of a command line up to the first redirection, pipe or separator."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    return words[: next((index for index, word in enumerate(words) if word in SHELL), len(words))]


@pytest.fixture(scope="module", autouse=True)
def folder_of_norms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the norms of the documents and the first campaign to a temporary folder and change to it.

    The folder is also on the import path. Yields its path.
    """
    folder = tmp_path_factory.mktemp("norms")
    notebook = json.loads((documents.ROOT / "notebooks/04_add_your_own_norm.ipynb").read_text())
    (cell,) = ("".join(cell["source"]) for cell in notebook["cells"] if "source = '''" in "".join(cell["source"]))
    documents.write_dyisru(folder)
    (folder / "docs").symlink_to(documents.ROOT / "docs")
    documents.write_spirals(folder)
    (first,) = documents.blocks(documents.ROOT / "docs/campaigns.md", "yaml")
    (folder / "my/campaign").mkdir()
    (folder / "my/campaign/first.yaml").write_text(first)
    (folder / "mean_abs.py").write_text(cell.split("'''")[1])
    (folder / "my/norm/mean_abs.yaml").write_text(cell.split('options = """')[1].split('"""')[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture
def stop_after_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make argparse, ``config.job`` and the reading of campaigns raise Parsed after success.

    Overrides parsed by argparse are also composed. ``config.job`` alone would not stop a campaign whose runs an earlier
    test composed, because they are cached.
    """
    parse, compose, read = argparse.ArgumentParser.parse_args, config.job, items.asked

    def parse_args(self: argparse.ArgumentParser, *args: object, **options: object) -> None:
        arguments = parse(self, *args, **options)
        if overrides := getattr(arguments, "overrides", None):
            compose([config.expand_home(word) for word in overrides])
        raise Parsed

    def job(*args: object, **options: object) -> None:
        compose(*args, **options)
        raise Parsed

    def read_asked(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(config, "job", compose)  # all of its words and norms are checked
            read(*args)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(items, "asked", read_asked)
    monkeypatch.setattr(summary, "print_check", Mock(side_effect=Parsed))
    monkeypatch.setattr(config, "job", job)


def check_runs(words: Sequence[str]) -> None:
    """Check the arguments of ``python -m rmsexp``: whether ``-m`` is needed, the norms, the config of the last run."""
    arguments = run.parse(words)
    if arguments.help:
        return
    overrides = words_module.overrides(arguments.overrides, arguments.config_dir)
    runs, swept, *_ = words_module.expand(overrides, arguments.multirun, arguments.config_dir)
    assert (swept is not None) == arguments.multirun
    norms = config.options("norm", arguments.config_dir)
    assert all(word.removeprefix("norm=") in norms for run in runs for word in run if word.startswith("norm="))
    config.job(runs[-1], arguments.config_dir)


def check_module(module: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the parser of a command such as report accepts ``words``, unless they are none or ``--help`` alone."""
    if module == "timing" and words not in ([], ["--help"]):
        monkeypatch.undo()
        timing.parse(words)
    elif words not in ([], ["--help"]):
        with pytest.raises(Parsed):
            entry.main([module, *words])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("stop_after_parsing")
def test_command_is_accepted_by_its_parser(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "…" not in command, "write the command out"
    Path(tmp_path, "my_norm.py").write_text("from torch.nn import RMSNorm as MyNorm\n")  # the reader's own module
    monkeypatch.syspath_prepend(tmp_path)
    match words_of(command):
        case ["make", *targets]:
            subprocess.run(["make", "-n", *targets], cwd=documents.ROOT, check=True, capture_output=True)
        case ["python", script, *words] if script.startswith("scripts/"):
            path = documents.ROOT / script
            monkeypatch.setattr(sys, "argv", [str(path), *words])
            monkeypatch.syspath_prepend(path.parent)
            with pytest.raises(Parsed):
                runpy.run_path(str(path), run_name="__main__")
        case ["python", "-m", module, *words] if module.removeprefix("rmsexp.") in entry.COMMANDS:
            check_module(module.removeprefix("rmsexp."), words, monkeypatch)
        case ["python", "-m", "rmsexp", module, *words] | ["rmsexp", module, *words] if module in entry.COMMANDS:
            check_module(module, words, monkeypatch)
        case ["python", "-m", "rmsexp", *words] | ["rmsexp", *words]:
            monkeypatch.undo()
            if own := [path for key, _, path in (word.partition("=") for word in words) if key in identity.OWN_FILES]:
                monkeypatch.chdir(tmp_path)  # where these files are
                for path in (Path(name + language) for name in own for language in ("", ".en", ".de")):
                    path.parent.mkdir(exist_ok=True)
                    path.write_text("a text\n")
            check_runs(words)
        case words:
            raise AssertionError(f"no parser for {words}")


def test_documents_have_commands_of_each_kind() -> None:
    starts = {re.split(r"[ .]", command.removeprefix("python -m "))[0] for command in COMMANDS}
    assert {"rmsexp", "make", "python"} <= starts
    assert len(COMMANDS) > 40
