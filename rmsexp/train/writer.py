"""Write the record of a run: its metrics, its checkpoints, ``run.json`` and ``status.json``."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rmsexp.config.schema import LoggerConfig
from rmsexp.records import record
from rmsexp.records.record import Status
from rmsexp.system import atomic, lock
from rmsexp.system.readers import yaml_text
from rmsexp.train import checkpoint, loggers
from rmsexp.train.progress import Failures


class Writer:
    """Writes the record of a run. Before :meth:`begin` it writes the status alone.

    ``run``: the name of the run. ``step``: the number of steps taken. ``checkpoint``: the step of the last checkpoint;
    None: unknown. ``begun``: whether this process has written ``run.json``. ``contention``: the last report of
    :class:`rmsexp.train.contention.Contention`.
    """

    def __init__(self, files: record.RunFolder, run: str, step: int = 0, checkpoint: int | None = 0) -> None:
        self.files, self.step, self.checkpoint, self.begun = files, step, checkpoint, False
        self._run = run

    def begin(
        self,
        identity: checkpoint.Identity,
        resolved: dict[str, Any],
        facts: dict[str, Any],
        contention: dict[str, Any],
        failures: Failures,
        logger: LoggerConfig | None = None,
    ) -> None:
        """Write the config, ``run.json`` and the status of a run that this process trains from now on.

        ``identity``: that of its checkpoints. ``resolved``: its config. ``facts``: the content of ``run.json``; the
        last of its ``sessions`` is that of this process, to which the contention, the errors in ``failures`` and, until
        a step is taken, ``trained: false`` are added. ``logger``: which loggers get the rows, too.
        """
        self._identity, self._facts, self.contention, self._failures = identity, facts, contention, failures
        atomic.write_atomic(self.files.config_path, yaml_text(resolved))
        self._write_progress(facts["sessions"][-1]["from_step"])
        self._loggers = loggers.opened(logger, failures, self.files.path, resolved, facts)

    def write_status(self, status: Status, error: str | None = None) -> None:
        """Replace ``status.json``. Raises: RunLockedError if another process may have taken over the run."""
        self.files.write_status(status, self.step, error, run=self._run, checkpoint=self.checkpoint)

    def append(self, rows: list[record.Row], files: Mapping[str, str | bytes] = {}) -> int:
        """Append rows to metrics and loggers, replace the task's files by name; return the metrics' length in bytes."""
        length = self.files.append(rows)
        for row in rows:
            self._to_loggers("log", row)
        for name, content in files.items():
            atomic.write_atomic(self.files.path / name, content)
        return length

    def save(self, payload: checkpoint.Payload, step: int) -> None:
        """Save a checkpoint, then update ``run.json`` and ``status.json``. Raises: as :meth:`write_status`."""
        self.files.lock.check()
        checkpoint.save(self.files.checkpoints, {"identity": self._identity._asdict()} | payload)
        self._write_progress(step)

    def save_best(self, payload: checkpoint.Payload) -> None:
        """Save the model of the best evaluation so far."""
        checkpoint.save(self.files.checkpoints, {"identity": self._identity._asdict()} | payload, checkpoint.BEST)

    def end(self, status: Status, step: int) -> None:
        """Close the loggers with the status of the run, after ``step`` steps.

        Then write ``run.json`` again if the run diverged, for the contention since the last checkpoint, or if a part
        was switched off, such as a logger that fails here.
        """
        self.step = step
        self._to_loggers("close", status)
        if status == "diverged" or self._failures.errors:
            with suppress(OSError, lock.RunLockedError):
                self._write_run()

    def _to_loggers(self, method: str, value: object) -> None:
        """Call a method of each logger; one that fails is switched off."""
        for name, logger in self._loggers.items():
            self._failures.attempt(name, getattr(logger, method), value)

    def _write_progress(self, step: int) -> None:
        self.step = self.checkpoint = step
        self.begun = True
        self._write_run()
        self.write_status("running")

    def _write_run(self) -> None:
        self.files.lock.check()
        *earlier, current = self._facts["sessions"]
        added: dict[str, Any] = {"contention": self.contention}
        if self._failures.errors:
            added["switched_off"] = self._failures.errors
        if self.step <= current["from_step"]:
            added[record.TRAINED] = False
        sessions = [*earlier, {**current, **added}]
        atomic.write_json(self.files.run_path, self._facts | {"sessions": sessions})
