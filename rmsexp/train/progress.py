"""Show the progress of a run: as a bar on a terminal, as plain lines elsewhere and in worker processes."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress

from rmsexp.records.record import Row, metrics_text
from rmsexp.system.command_line import duration

LOG = logging.getLogger("rmsexp")

P = ParamSpec("P")
T = TypeVar("T")


class Failures:
    """Parts of a run that only show or copy its results, which have failed and are switched off, so the run goes on.

    ``errors``: by the name of such a part, such as "the log file" or "logger=wandb", the message of its error.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def attempt(self, part: str, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a call for a part, or None if the call fails or the part has failed before.

        The first failure of a part is recorded, and a line on standard error reports it.
        """
        if part in self.errors:
            return None
        try:
            return action(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.errors[part] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            with suppress(OSError, ValueError):  # standard error itself may have failed
                print(f"warning: {part} is switched off, the run goes on ({self.errors[part]})", file=sys.stderr)
            return None


class LogFile(logging.FileHandler):
    """A log file that is switched off if it cannot be written."""

    def __init__(self, path: Path, failures: Failures) -> None:
        super().__init__(path, encoding="utf-8")
        self._failures = failures

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        def again() -> None:
            raise

        self._failures.attempt("the log file", again)

    def close(self) -> None:
        with suppress(OSError):  # of a line that could not be written
            super().close()


@contextmanager
def logged(path: Path, failures: Failures) -> Iterator[None]:
    """Inside the context, append log messages to a file: the run's own, and others of the levels that are logged.

    Other handlers, such as those of a program that calls :func:`rmsexp.run`, do not get the run's own messages.
    """
    handler = failures.attempt("the log file", LogFile, path, failures) or logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    loggers, level, propagate = (LOG, logging.getLogger()), LOG.level, LOG.propagate
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        LOG.setLevel(level)
        LOG.propagate = propagate
        handler.close()


class ProgressDisplay:
    """Shows training rows (step, loss, speed, remaining time), evaluation rows and messages on standard error.

    If the display fails, it is switched off and its error is added to ``failures``. With ``quiet`` it shows only
    warnings. ``metric``: the metric that is shown of evaluations, besides the loss.
    """

    metric: str | None = None

    def __init__(self, label: str, steps: int, failures: Failures | None = None, quiet: bool = False) -> None:
        self._label, self._steps, self._failures = label, steps, failures or Failures()
        self._console = Console(file=sys.stderr, quiet=quiet)
        # a live display takes over the standard streams, and with a quiet console nothing of them would be shown
        shows_bar = self._console.is_terminal and not quiet and parent_process() is None
        columns = "{task.description}", BarColumn(), "{task.completed:.0f}/{task.total:.0f}", "{task.fields[text]}"
        self._bar = Progress(*columns, console=self._console) if shows_bar else None
        if self._bar is not None:
            self._task = self._bar.add_task(label, total=steps, text="")
            self._show(self._bar.start)

    def update(self, row: Row, rates: Mapping[str, float], left: float) -> None:
        """Show a training row.

        ``rates``: numbers per second of training, of steps and of what else is counted, such as tokens. ``left``: the
        seconds that the rest will take, evaluations and checkpoints included.
        """
        step, loss = row["step"], row["loss"]
        loss_text = "not finite" if loss is None else f"{loss:.4f}"
        speed = ", ".join(f"{rate:,.{0 if rate >= 100 else 1}f} {name}/s" for name, rate in rates.items())
        text = f"loss {loss_text}  {speed}  {duration(left)} left"
        if self._bar is not None:
            self._show(self._bar.update, self._task, completed=step, text=text)
        else:
            self.report(f"{self._label}  step {step}/{self._steps}  {text}")

    def report_evaluation(self, row: Row) -> None:
        self.report(
            f"{self._label}  step {row['step']}/{self._steps}  {row['split']}: {metrics_text(row, self.metric)}"
        )

    def report(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        LOG.info(text)
        self._show(self._console.print, text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning. With ``quiet``, it names the run, which nothing before it has named."""
        if self._console.quiet:
            LOG.warning(text)
            self._show(print, f"warning: {self._label}: {text}", file=sys.stderr)
        else:
            self.report(f"warning: {text}")

    def close(self) -> None:
        if self._bar is not None:
            self._show(self._bar.stop)

    def _show(self, action: Any, *arguments: Any, **options: Any) -> Any:
        return self._failures.attempt("the progress display", action, *arguments, **options)
