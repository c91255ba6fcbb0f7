"""The process of a command: output that fails, signals, and worker processes that end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rmsexp.system import process

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path = ROOT, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, **options)


# --- output


def test_a_command_whose_reader_ends_has_no_traceback() -> None:
    code = """
from rmsexp.system.command_line import entry_point
@entry_point
def main(argv=None):
    for _ in range(100_000):
        print("a line")
    return 0
raise SystemExit(main())
"""
    done = run("sh", "-c", '"$0" -c "$1" | head -1', sys.executable, code)
    assert (done.stdout, done.stderr) == ("a line\n", "")


def test_characters_that_the_stream_lacks_become_question_marks() -> None:
    code = "from rmsexp.system.command_line import entry_point\nentry_point(lambda argv=None: print('é → x'))()"
    done = run(sys.executable, "-c", code, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.stdout, done.stderr) == ("? ? x\n", "")


# --- Ctrl-C

LINE = "rmsexp: interrupted\n"


def test_ctrl_c_in_a_command_can_be_caught(tmp_path: Path) -> None:
    """As by a sweep, which says how far it has come. While the package is imported, Ctrl-C ends the process."""
    (tmp_path / "rmsexp_command.py").write_text(
        "import os, signal, sys; import rmsexp; from rmsexp.system import command_line, process\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "@command_line.entry_point\n"
        "def main(argv=None):\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "    except KeyboardInterrupt: print('stopped'); raise\n"
        "sys.exit(main())\n"
    )
    done = run(sys.executable, tmp_path / "rmsexp_command.py", env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped\n", LINE)


def test_ctrl_c_while_a_command_imports_its_modules_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """In place of pandas, the command imports a module that sends the signal."""
    (tmp_path / "pandas.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    code = "import signal; a = signal.getsignal(2); import rmsexp; assert signal.getsignal(2) is a"
    assert run(sys.executable, "-c", code).returncode == 0  # only commands have a handler of their own
    ends = {"-m rmsexp.report results": (-signal.SIGINT, "", ""), "-m rmsexp report results": (130, "", LINE)}
    for command, end in ends.items():
        done = run(
            sys.executable,
            *command.split(),
            env=os.environ | {"PYTHONPATH": path},
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert (done.returncode, done.stdout, done.stderr) == end


# --- worker processes

POOL = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from rmsexp.system import process

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), process.follow_parent)
    pool.submit(signal.raise_signal, signal.SIGINT).result()  # a terminal sends it to the command, too
    print(pool.submit(os.getpid).result(), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_process_of_a_pool_ends_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    # the pool's process has the pipes, too, so that this returns only when it has ended
    done = run(sys.executable, tmp_path / "pool.py", env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_command_cleans_up(signum: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(SystemExit) as ended, process.ending_on_signals(), TemporaryDirectory(dir=tmp_path):
        signal.raise_signal(signum)
    assert ended.value.code == 128 + signum
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signum) == before


class Handler:
    """A handler of signals, as submitit has it. ``received``: the signals that it was called for."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __call__(self, signum: int, frame: object) -> None:  # noqa: ARG002
        self.received.append(signum)


@pytest.mark.parametrize(("module", "inside"), [("submitit.core.job_environment", True), ("submit", False)])
def test_in_a_job_of_submitit_sigterm_is_left_alone(module: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "__module__", module)
    with process.handling(Handler(), [signal.SIGUSR2]):
        assert process.in_submitit() == inside
        assert (signal.SIGTERM in process.stopping_signals()) != inside
    assert not process.in_submitit()


def test_a_signal_is_handed_on_to_the_handler_that_was_there() -> None:
    handler, ours = Handler(), Handler()
    ours.__module__ = "rmsexp.system.process"
    with process.handling(handler, [signal.SIGUSR2, signal.SIGTERM]):
        process.hand_on(signal.SIGUSR2)
        process.hand_on(signal.SIGTERM)
        process.hand_on(None)
    with process.handling(ours, [signal.SIGUSR2]):
        process.hand_on(signal.SIGUSR2)
    process.hand_on(signal.SIGUSR2)
    assert (handler.received, ours.received) == ([signal.SIGUSR2], [])

    def handle(signum: int, frame: object) -> None:  # noqa: ARG001
        raise SystemExit(-1)  # as submitit, after it has requeued its job

    with process.handling(handle, [signal.SIGUSR2]), pytest.raises(SystemExit):
        process.hand_on(signal.SIGUSR2)
