"""What earlier processes of a run left in its folder: read it, and compare it with the run to be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rmsexp import config
from rmsexp.records import record
from rmsexp.system.command_line import ReportedError
from rmsexp.system.readers import read_yaml

T = TypeVar("T")
ANEW = "start a new run with force=true, which keeps this one beside it"
TOKENS = (record.SUBWORDS, record.WORDS)  # what gives the ids in the data their meaning
# What must be as it was when the run began: how it differs, and what else can be done than to start a new run.
DIFFERENCES = {
    "run": ("holds the run {before:.200}", "give the folder its old name back, or "),
    "config": ("was begun with another config ({before})", ""),
    "data": ("was trained on other data (digest {before:.12}, now {now:.12})", "set data.root to the old data, or "),
    **{
        kind: (f"was trained with other {kind} than those that are now in data.root", "restore them, or ")
        for kind in TOKENS
    },
}


class RefusedError(ReportedError, ValueError):
    """A run is refused: its folder holds another run than the job's, or a damaged record, and is left as it was."""


@dataclass(frozen=True)
class Past:
    """The content of ``status.json``, ``run.json`` and ``config.yaml`` in the folder of a run.

    Each is None if its file is missing, as in a new run, or after a process died before it had written all of them.
    """

    files: record.RunFolder
    status: record.StatusContent | None
    run: record.RunContent | None
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
        """The step in the status, or 0."""
        return self.status["step"] if self.status else 0

    @property
    def checkpoint(self) -> int | None:
        """The step of the last checkpoint according to the status; 0: there is none; None: unknown."""
        return self.status.get("checkpoint") if self.status else None

    @property
    def sessions(self) -> list[record.Session]:
        """The sessions in ``run.json``, or an empty list."""
        return self.run["sessions"] if self.run else []

    def refuse_other(self, notes: Mapping[str, str] | None = None, **now: Any) -> None:
        """Raise RefusedError if what is known of the run now differs from what it began with.

        ``notes``: those of the task, with the digests of its tokens. ``now``: values by the other keys of
        ``DIFFERENCES``: the run's name, its resolved config and the digest of its data. What the record lacks is not
        compared.
        """
        own: Mapping[str, Any] = self.run or {}
        began: dict[str, Any] = {**(own.get("notes") or {}), "config": self.resolved}
        if own:
            began["run"] = name(*(own.get(key) for key in ("task", "setting", "series", "seed")))
            began["data"] = own["dataset"]["digest"]
        tokens = {} if notes is None else {kind: notes.get(kind) for kind in TOKENS}
        for key, value in (now | tokens).items():
            before = began.get(key)
            if before is None:
                continue
            if key == "config":
                changed = config.differences(value, config.respelled(before))
                count = f"; {len(changed)} keys differ" if len(changed) > 1 else ""
                first = (f"{name:.80} is now {changed[name]!s:.40}{count}" for name in changed)
                before, value = next(first, None), None
            if before != value:
                how, instead = DIFFERENCES[key]
                raise RefusedError(f"{self.files.path} {how.format(before=before, now=value)}; {instead}{ANEW}")

    def has_ended(self, max_steps: int) -> bool:
        """Return whether the run has diverged or reached a number of steps, according to its status.

        Raises: RefusedError if the run has ended, and the other files contradict that.
        """
        if self.status is None or self.status["status"] not in record.ENDED:
            return False
        files = self.files
        kept = ((files.run_path, self.run), (files.config_path, self.resolved))
        problem = next((f"{path} is missing" for path, content in kept if content is None), None)
        try:
            problem = problem or files.read_metrics()[1]
        except FileNotFoundError:
            problem = f"{files.metrics_path} is missing"
        if problem is not None:
            raise RefusedError(f"{problem}; restore the file, or {ANEW}")
        return self.status["status"] == "diverged" or self.step >= max_steps


def name_of(job: config.Job) -> str:
    return name(job.config.task, job.setting, job.series, job.config.seed)


def name(task: Any, setting: Any, series: Any, seed: Any) -> str:
    """Return the name of a run, which is the end of its folder's path."""
    return f"{task}/{setting}/{series}/seed{seed}"
