"""What all commands share: short messages, exit statuses, one-line mistakes, help."""

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from rmsexp.__main__ import COMMANDS
from rmsexp.config import ConfigError
from rmsexp.config.words import CONFIGS
from rmsexp.data import DataError
from rmsexp.system import command_line
from rmsexp.system.command_line import LONGEST_MESSAGE, Parser, ReportedError, brief, duration, entry_point


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("seed must be at least 0, got -1", "seed must be at least 0, got -1"),
        ("a  b\n\n c \nd\n", "a  b\nc d"),
        (ValueError(), "ValueError"),
        (f"{'/folder' * 500}/last.pt is damaged", f"/folder/folder/folder/folder/f…{'folder/' * 6}last.pt is damaged"),
        ("word " * 1000, f"{'word ' * 133}w…ord{' word' * 66}"),
        ("a \x1b[31m \udce9 é ❌ \t \0", r"a \x1b[31m \udce9 é ❌ \t \x00"),
    ],
)
def test_a_message_has_at_most_two_lines_and_1000_printable_characters(message: object, expected: str) -> None:
    assert brief(message) == expected
    assert len(expected) <= LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_durations_are_in_minutes_or_hours(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("a mistake"), 2, "rmsexp: a mistake\n"),
        (DataError("no data"), 1, "rmsexp: no data\n"),
        (ReportedError("a failure"), 1, "rmsexp: a failure\n"),
        (ValueError("a value"), 1, "rmsexp: a value\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "rmsexp: [Errno 2] No such file: 'x'\n"),
        (KeyboardInterrupt(), 130, "rmsexp: interrupted\n"),
        (MemoryError("x"), 1, "rmsexp: too little memory (x); choose smaller sizes, such as a smaller batch\n"),
        (KeyError("a mistake in the program"), None, ""),
    ],
)
def test_a_command_reports_an_error_and_returns_its_status(
    error: BaseException, status: int | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @entry_point
    def main(argv: Sequence[str] | None = None) -> int:  # noqa: ARG001
        raise error

    if status is None:
        with pytest.raises(type(error)):
            main([])
    else:
        assert main([]) == status
        assert capsys.readouterr() == ("", message)


def test_a_parser_reports_a_mistake_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    parser.add_subparsers(required=True).add_parser("norms").add_argument("--dtype", choices=("float32", "float64"))
    for words in ([], ["norms", "--dtype", "x" * 5000], ["norms", "--nothing"]):
        with pytest.raises(SystemExit) as end:
            parser.parse_args(words)
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert err.startswith("rmsexp: ")
        assert err.count("\n") == 1
        assert len(err) <= LONGEST_MESSAGE + len("rmsexp: \n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_docstring_of_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"rmsexp.commands.{command}")
    with contextlib.suppress(SystemExit):
        module.main(["--help"])
    assert " ".join((module.__doc__ or "").split()) in " ".join(capsys.readouterr().out.split())
    assert f"\n    {command}  " in (CONFIGS / "hydra/help/rmsexp.yaml").read_text()


def test_a_command_is_typed_with_this_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command_line.command("rmsexp", "a b") == "python -m rmsexp 'a b'"
    monkeypatch.setenv("PATH", str(tmp_path))  # the environment is not active
    monkeypatch.chdir(tmp_path)
    assert command_line.command("rmsexp") == f"{sys.executable} -m rmsexp"
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert command_line.command("rmsexp") == f"bin/{Path(sys.executable).name} -m rmsexp"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], "", id="no words"),
        pytest.param(["python", "-m", "rmsexp", "task=cifar10"], "python -m rmsexp task=cifar10", id="without places"),
        pytest.param(["results=/a", "x", "data.root=/b"], "x", id="keys"),
        pytest.param(["--results", "/a", "x", "--folder=/b"], "x", id="options, with a value after or in them"),
        pytest.param(["x", "--results"], "x", id="an option without its value"),
    ],
)
def test_a_recorded_command_names_no_folder_of_the_machine(words: list[str], expected: str) -> None:
    assert command_line.recorded(words) == expected
