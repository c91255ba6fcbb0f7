"""What earlier processes of a run left in its folder: read it, check it, and compare it with the run to be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmsexp import config
from rmsexp.records import record
from rmsexp.system import atomic
from rmsexp.system.command_line import ReportedError
from rmsexp.system.readers import read_yaml

UNCHECKED = "the status was written by an older version, without a digest: changes to the record cannot be seen"


class RefusedError(ReportedError, ValueError):
    """The folder holds another run than the job's, or its run had other data. That run is left as it was."""


def tokens_that_differ(run: Mapping[str, Any], notes: Mapping[str, str]) -> str | None:
    """Return "subwords" or "words" if a run was trained with others than a task has now, as far as it is known.

    ``run``: the content of ``run.json``. ``notes``: those of the task.
    """
    then = run.get("notes") or {}
    kinds = (record.SUBWORDS, record.WORDS)
    return next((kind for kind in kinds if then.get(kind) is not None and then[kind] != notes.get(kind)), None)


@dataclass
class Earlier:
    """The content of ``status.json``, ``run.json`` and ``config.yaml`` in the folder of a run.

    Each is None if its file is missing or damaged. ``damaged``: messages about the damaged files, by path.
    """

    folder: record.RunFolder
    status: dict[str, Any] | None
    run: dict[str, Any] | None
    resolved: dict[str, Any] | None
    damaged: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: record.RunFolder) -> Earlier:
        damaged: dict[Path, str] = {}

        def content(path: Path, read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
            try:
                return read()
            except FileNotFoundError:
                return None
            except (ValueError, IsADirectoryError) as error:
                damaged[path] = str(error)
                return None

        status = content(folder.status_path, folder.read_status)
        run = content(folder.run_path, folder.read_run)
        resolved = content(folder.config_path, lambda: read_yaml(folder.config_path))
        return cls(folder, status, run, resolved, damaged)

    @property
    def step(self) -> int:
        """Return the step in the status, or 0."""
        return self.status["step"] if self.status else 0

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions in ``run.json``, or an empty list."""
        return self.run["sessions"] if self.run else []

    def refuse_other_run(self, job: config.Job) -> None:
        """Raise RefusedError if the folder was renamed: ``run.json`` describes another run than the job."""
        if self.run is None:
            return
        found = name(*(self.run.get(key) for key in ("task", "setting", "series", "seed")))
        if found != name_of(job):
            raise RefusedError(
                f"{self.folder.path} holds the run {found:.200}; give the folder its old name back, "
                "or start a new run with force=true, which keeps this one beside it"
            )

    def refuse_other_config(self, job: config.Job) -> None:
        """Raise RefusedError if the run was begun with another config: if a key of the run's identity differs."""
        changed = config.differences(job.resolved, config.respelled(self.resolved)) if self.resolved is not None else {}
        if changed:
            key, value = next(iter(changed.items()))
            count = f"; {len(changed)} keys differ" if len(changed) > 1 else ""
            raise RefusedError(
                f"{self.folder.path} was begun with another config ({key:.80} is now {value!s:.40}{count}); "
                "start a new run with force=true, which keeps this one beside it"
            )

    def refuse_other_data(self, digest: str) -> None:
        """Raise RefusedError if the run was trained on a data set with another digest than ``digest``."""
        found = self.run["dataset"]["digest"] if self.run else digest
        if found != digest:
            raise RefusedError(
                f"{self.folder.path} was trained on other data (digest {found[:12]}, now {digest[:12]}); "
                "set data.root to the folder of the old data, or start a new run with force=true, which keeps this one"
            )

    def refuse_other_tokens(self, notes: Mapping[str, str]) -> None:
        """Raise RefusedError if subwords or words were found anew and differ: the same ids would have other meanings.

        ``notes``: those of the task. The subwords and words of older runs are not known.
        """
        if self.run is not None and (kind := tokens_that_differ(self.run, notes)):
            raise RefusedError(
                f"{self.folder.path} was trained with other {kind} than those that are now in data.root; restore the "
                "old ones, or start a new run with force=true, which keeps this one"
            )

    def has_ended(self, job: config.Job) -> bool:
        """Return whether the run has diverged or reached the job's number of steps, according to its status."""
        if self.status is None or self.status["status"] not in record.ENDED:
            return False
        return self.status["status"] == "diverged" or self.status["step"] >= job.config.max_steps

    @property
    def notices(self) -> list[str]:
        """Return a line for each damaged file, and one if the record of an ended run cannot be checked."""
        checked = self.status is not None and self.status.get("metrics") is not None
        return [*self.damaged.values(), *([] if checked else [UNCHECKED])]

    def contradiction(self, job: config.Job) -> str | None:
        """Return what contradicts the status of a run that has ended, or None."""
        assert self.status is not None
        status, step, run = self.status["status"], self.status["step"], self.status.get("run")
        if run not in (None, name_of(job)):
            return f"{self.folder.status_path} is of the run {run!s:.150}"
        for path, content in ((self.folder.run_path, self.run), (self.folder.config_path, self.resolved)):
            if content is None:
                return self.damaged.get(path, f"{path} is missing")
        try:
            rows, problem = self.folder.read_metrics()
        except FileNotFoundError:
            return f"{self.folder.metrics_path} is missing"
        last = rows[-1]["step"] if rows else -1
        if problem is None and (last > step or (status == "finished" and last < step)):
            problem = f"{self.folder.status_path} says {status} at step {step}, but the metrics end at step {last}"
        return problem

    def repair(self) -> list[str]:
        """Rename damaged files and return a line for each file that is damaged or missing. All are written again."""
        files, status = self.folder, self.status
        contents = {files.status_path: status, files.run_path: self.run, files.config_path: self.resolved}
        # The status is written first. It has a checkpoint, or 0, only after the other files have been written.
        begun = self.run is not None or (status is not None and status.get("checkpoint") is not None)
        lines = []
        for path in (path for path, content in contents.items() if content is None):
            if path in self.damaged:
                kept = atomic.move_aside(path).name
                lines.append(f"{self.damaged[path]}; it is written again, and the damaged file is kept as {kept}")
            elif begun:
                lines.append(f"{path} is missing; it is written again")
        return lines


def name_of(job: config.Job) -> str:
    return name(job.config.task, job.setting, job.series, job.config.seed)


def name(task: Any, setting: Any, series: Any, seed: Any) -> str:
    """Return the name of a run, which is the end of its folder's path."""
    return f"{task}/{setting}/{series}/seed{seed}"
