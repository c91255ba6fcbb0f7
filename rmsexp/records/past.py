"""What earlier processes of a run left in its folder: read it, and compare it with the run to be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rmsexp import config
from rmsexp.records import record
from rmsexp.records.contents import RunContent, Session, StatusContent
from rmsexp.system.command_line import ReportedError
from rmsexp.system.readers import read_yaml

T = TypeVar("T")
ANEW = "start a new run with force=true, which keeps this one beside it"
TOKENS = (record.SUBWORDS, record.WORDS)  # what gives the ids in the data their meaning
# What must be as it was when the run began: how it differs, and what else can be done than to start a new run.
DIFFERENCES = {
    "run": ("holds the run {before:.200}", "give the folder its old name back, or "),
    "config": ("was begun with another config ({before})", ""),
    "data": (
        "was trained on other data (digest {before:.12}, now {now:.12})",
        "set data.root to the folder of the old data, or ",
    ),
} | {
    kind: (f"was trained with other {kind} than those that are now in data.root", "restore the old ones, or ")
    for kind in TOKENS
}


class RefusedError(ReportedError, ValueError):
    """The folder holds another run than the job's, or a damaged record. It is left as it was."""


@dataclass(frozen=True)
class Past:
    """The content of ``status.json``, ``run.json`` and ``config.yaml`` in the folder of a run.

    Each is None if its file is missing, as in a new run, or after a process died before it had written all of them.
    """

    files: record.RunFolder
    status: StatusContent | None
    run: RunContent | None
    resolved: dict[str, Any] | None

    @classmethod
    def read(cls, files: record.RunFolder) -> Past:
        """Read the files. Raises: RefusedError if one is damaged; OSError if one cannot be opened."""

        def content(read: Callable[[], T]) -> T | None:
            try:
                return read()
            except FileNotFoundError:
                return None
            except ValueError as error:
                advice = f"restore the file, or remove it, and it is written again; or {ANEW}"
                raise RefusedError(f"{error}; {advice}") from None

        return cls(
            files, content(files.read_status), content(files.read_run), content(lambda: read_yaml(files.config_path))
        )

    @property
    def step(self) -> int:
        """Return the step in the status, or 0."""
        return self.status["step"] if self.status else 0

    @property
    def checkpoint(self) -> int | None:
        """Return the step of the last checkpoint according to the status; 0: there is none; None: unknown."""
        return self.status.get("checkpoint") if self.status else None

    @property
    def sessions(self) -> list[Session]:
        """Return the sessions in ``run.json``, or an empty list."""
        return self.run["sessions"] if self.run else []

    def refuse_other(self, **now: Any) -> None:
        """Raise RefusedError if what is known of the run now differs from what it began with.

        ``now``: values by keys of ``DIFFERENCES``: the run's name, its resolved config, the digest of its data, and the
        digests of its tokens. What the record lacks is not compared.
        """
        if (found := self.difference(**now)) is not None:
            key, text = found
            raise RefusedError(f"{self.files.path} {text}; {DIFFERENCES[key][1]}{ANEW}")

    def difference(self, **now: Any) -> tuple[str, str] | None:
        """Return the first key whose value differs, and how, such as "was trained on other data …"; None if none does.

        Arguments are as in :meth:`refuse_other`.
        """
        began = self._began()
        for key, value in now.items():
            before = began.get(key)
            if before is None:
                continue
            if key == "config":
                before, value = _changes(value, config.respelled(before)), None
            if before != value:
                return key, DIFFERENCES[key][0].format(before=before, now=value)
        return None

    def _began(self) -> dict[str, Any]:
        """Return what the run began with, as far as the record has it, by keys of ``DIFFERENCES``."""
        if self.run is None:
            return {"config": self.resolved}
        run: Mapping[str, Any] = self.run
        own = name(*(run.get(key) for key in ("task", "setting", "series", "seed")))
        notes = run.get("notes") or {}
        return {"run": own, "config": self.resolved, "data": run["dataset"]["digest"]} | {
            kind: notes.get(kind) for kind in TOKENS
        }

    def has_ended(self, max_steps: int) -> bool:
        """Return whether the run has diverged or reached a number of steps, according to its status.

        Raises: RefusedError if the run has ended, and the other files contradict that.
        """
        if self.status is None or self.status["status"] not in record.ENDED:
            return False
        if (problem := self._contradiction()) is not None:
            raise RefusedError(f"{problem}; restore the file, or {ANEW}")
        return self.status["status"] == "diverged" or self.step >= max_steps

    def _contradiction(self) -> str | None:
        """Return what contradicts that the run has ended, or None."""
        files, contents = self.files, (self.run, self.resolved)
        for path, content in zip((files.run_path, files.config_path), contents, strict=True):
            if content is None:
                return f"{path} is missing"
        try:
            return files.read_metrics()[1]
        except FileNotFoundError:
            return f"{files.metrics_path} is missing"


def _changes(resolved: dict[str, Any], before: dict[str, Any]) -> str | None:
    """Return the first key of a run's identity that has changed, and their number; None if there is none."""
    changed = config.differences(resolved, before)
    if not changed:
        return None
    key, value = next(iter(changed.items()))
    count = f"; {len(changed)} keys differ" if len(changed) > 1 else ""
    return f"{key:.80} is now {value!s:.40}{count}"


def tokens(notes: Mapping[str, str]) -> dict[str, str | None]:
    """Return the digests of a task's tokens from its notes, for :meth:`Past.refuse_other`."""
    return {kind: notes.get(kind) for kind in TOKENS}


def name_of(job: config.Job) -> str:
    return name(job.config.task, job.setting, job.series, job.config.seed)


def name(task: Any, setting: Any, series: Any, seed: Any) -> str:
    """Return the name of a run, which is the end of its folder's path."""
    return f"{task}/{setting}/{series}/seed{seed}"
