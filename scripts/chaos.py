"""Kills one run again and again with SIGKILL and shows that it ends as if nothing had happened.

    python scripts/chaos.py [--kills 20] [--norm bn] [--steps N] [--data-root DIR] [OVERRIDE ...]

The default norm is bn: its running statistics are the state that is lost most easily. Of the kills at least three each
(of 20) fall into a checkpoint write, a metrics write, an evaluation and the warm-up; the rest come at random moments.
The package knows nothing of this: a child is this script again, which replaces ``os.fsync`` and a few methods first.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmsexp import record

# Of each fault point its share of 20 kills and the range of its counts, so that children advance, but not too far.
SHARES = {"checkpoint": 3, "rename": 2, "metrics": 4, "evaluation": 4, "warmup": 3}
COUNTS = {"checkpoint": (1, 2), "rename": (1, 2), "metrics": (3, 4), "evaluation": (1, 2), "warmup": (1, 1)}
COUNTS["random"] = (2, 36)  # steps that a child computes before, the three of its warm-up among them
CHECKPOINT_EVERY = 10
STEP, KILLED = "chaos: step", "chaos: killed"


@dataclass(frozen=True)
class Kill:
    """A planned kill: at the ``count``-th time that a child reaches ``point``; "random": soon after so many steps."""

    point: str
    count: int


@dataclass(frozen=True)
class Child:
    """How a child ended: the first step that it computed, the last one, and where it was killed."""

    status: int
    began: int | None
    reached: int | None
    where: str | None


def plan(kills: int, rng: random.Random) -> list[Kill]:
    """The kills in random order; the first comes before the first checkpoint."""
    shares = [point for point, share in SHARES.items() for _ in range(share)]
    points = (shares + ["random"] * kills)[:kills] if kills >= len(shares) else rng.sample(shares, kills)
    rng.shuffle(points)
    first = next((i for i, point in enumerate(points) if point in ("warmup", "metrics", "evaluation")), 0)
    points[0], points[first] = points[first], points[0]
    counts = [rng.randint(*COUNTS[point]) for point in points]
    return [Kill(point, count if i else 1) for i, (point, count) in enumerate(zip(points, counts, strict=True))]


def run(words: Sequence[str], log: Path, kill: Kill | None = None, delay_seconds: float = 0.0) -> Child:
    """Runs one child with the overrides ``words``; what it says is added to ``log``."""
    fault = f"{kill.point}:{kill.count}" if kill else "none:0"
    command = [sys.executable, __file__, "--child", fault, *words]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # quicker where others compute beside it
    steps, where = [], None
    with (
        log.open("a") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            file.write(line)
            if line.startswith(STEP):
                steps.append(int(line.removeprefix(STEP)))
            elif line.startswith(KILLED):
                where = line.removeprefix(KILLED).strip()
            if kill and kill.point == "random" and where is None and len(steps) == kill.count:
                time.sleep(delay_seconds)
                child.send_signal(signal.SIGKILL)
                where = "anywhere"
    return Child(child.returncode, steps[0] if steps else None, steps[-1] if steps else None, where)


def be_child(fault: str, words: Sequence[str]) -> int:
    """Runs the command line; ends itself where ``fault`` says, and tells its parent every step before."""
    from rmsexp import app
    from rmsexp.tasks import cifar10
    from rmsexp.train import loop

    point, count = fault.split(":")
    left, updates, before = int(count), 0, sys.maxsize

    def die(where: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            print(f"{KILLED} {where}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def halve(path: Path, kept: int, where: str) -> None:
        """Leaves what there would be if the process had been killed in the middle of this write."""
        content = path.read_bytes()
        os.truncate(path, kept)
        die(where)
        path.write_bytes(content)

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        size, temporary = os.path.getsize(path), re.fullmatch(r"\.(\w+\.pt)\.\d+\.tmp", path.name)  # noqa: PTH202
        if point == "checkpoint" and temporary:
            halve(path, size // 2, f"{temporary[1]} half written")
        elif point == "metrics" and path.name == record.METRICS and size > before:
            halve(path, (before + size) // 2, "the new lines of metrics.jsonl half written")
        elif point == "rename" and (path / "previous.pt").exists() and not (path / "last.pt").exists():
            die("last.pt renamed to previous.pt, no new one yet")
        sync(descriptor)

    def append(path: Path, rows: list[record.Row]) -> int:
        nonlocal before
        before = path.stat().st_size if path.exists() else 0
        return original_append(path, rows)

    def update(self: loop.Trainer, step: int, batches: Sequence[Any]) -> Any:
        nonlocal updates
        updates += 1
        print(STEP, step, flush=True)
        result = original_update(self, step, batches)
        if point == "warmup" and updates == 2:
            die("after its second step")
        return result

    def evaluate(self: cifar10.Task, model: Any) -> Any:
        hook = model.register_forward_hook(lambda *_: die(f"in batch {count}"))
        results = original_evaluate(self, model)
        hook.remove()
        return results

    sync, os.fsync = os.fsync, fsync  # type: ignore[assignment]
    original_append, record.append = record.append, append
    original_update, loop.Trainer._update = loop.Trainer._update, update  # type: ignore[method-assign]
    original_evaluate = cifar10.Task.evaluate
    if point == "evaluation":
        cifar10.Task.evaluate = evaluate  # type: ignore[method-assign]
    return app.main(words)


def compare(reference: Path, other: Path) -> list[str]:
    """What differs between two finished runs in ``seen``, in a few words each."""
    return differences(seen(reference), seen(other))


def seen(results: Path) -> dict[str, Any]:
    """All that must be equal of the one run in ``results``: times are left out, and the bytes that they take."""
    import torch

    (folder,) = record.find_runs(results)
    rows, warning = record.read_metrics(folder / record.METRICS)
    status = record.read_status(folder)
    found: dict[str, Any] = {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "status": (status["status"], status["step"], warning),
        "metrics": [row | {"seconds": None} for row in rows],
    }
    for path in (folder / record.CHECKPOINTS).glob("*.pt"):
        found[path.name] = torch.load(path, weights_only=True)
        found[path.name].pop("clock", None)
        found[path.name].get("state", {}).pop("metrics_bytes", None)
    return found


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """The places where two nested values differ in a type, a key or a bit."""
    import torch

    if type(a) is not type(b):
        return [f"{place}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, torch.Tensor):
        alike = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return [] if alike and a.numpy().tobytes() == b.numpy().tobytes() else [f"{place}: the tensors differ"]
    if isinstance(a, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [found for i in range(len(a)) for found in differences(a[i], b[i], f"{place}/{i}")]
    return [] if repr(a) == repr(b) else [f"{place}: {a!r:.200}, {b!r:.200}"]


def campaign(kills: Sequence[Kill], words: Sequence[str], root: Path, rng: random.Random) -> list[str]:
    """Runs the reference, the killed run and its last child; prints each kill and returns what is wrong."""
    logs, wrong = root / "log.txt", []
    reference, killed = ([*words, f"results={root / name}"] for name in ("reference", "killed"))
    if run(reference, logs).status != 0:
        return [f"the reference failed: see {logs}"]
    print(f"{'kill':>4}  {'resumed at':>10}  {'killed in step':>14}  where", flush=True)
    for number, kill in enumerate(kills, 1):
        death = run(killed, logs, kill, rng.uniform(0, 0.2))
        print(f"{number:4}  {death.began!s:>10}  {death.reached!s:>14}  {kill.point}: {death.where}", flush=True)
        if death.status != -signal.SIGKILL or death.where is None:
            wrong.append(f"kill {number} ({kill.point}) did not happen: exit status {death.status}, see {logs}")
    last = run(killed, logs)
    print(f"last  {last.began!s:>10}  to the end: exit status {last.status}")
    if last.status != 0:
        return [*wrong, f"the last child failed: see {logs}"]
    return wrong + compare(root / "reference", root / "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--norm", default="bn")
    parser.add_argument("--steps", type=int, help="of the run; by default enough for the kills")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the plan")
    parser.add_argument("--child", metavar="POINT:COUNT", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="more of the run's config, as in optim.lr=0.01")
    options = parser.parse_args()
    if options.child:
        return be_child(options.child, options.overrides)
    rng = random.Random(options.seed)
    steps = options.steps or CHECKPOINT_EVERY * (options.kills + 10)
    words = [f"norm={options.norm}", f"schedule.steps={steps}", f"checkpoint_every={CHECKPOINT_EVERY}"]
    words += [
        "log_every=5",
        "eval_every=20",
        "batch_size=20",
        *([f"data.root={options.data_root}"] if options.data_root else []),
    ]
    begun, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-chaos-"))
    wrong = campaign(plan(options.kills, rng), [*words, *options.overrides], root, rng)
    print("\n".join(wrong) or "bit-identical to the run that was never interrupted", f"({root})")
    print(f"{time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
