"""Kill one run again and again with SIGKILL, and check that it ends bit-identical to an uninterrupted run.

    python scripts/chaos.py [--kills 20] [--norm bn] [--steps N] [--data-root DIR] [OVERRIDE ...]
    python scripts/chaos.py --sweep [--faults 20]    # faults of many kinds, in a sweep: see chaos_sweep.py

The default norm is bn, because its running statistics are the state that is lost most easily. Of 20 kills, at least
three each hit a checkpoint write, a metrics write, an evaluation and the warm-up; the others come at random moments.
With --results what happened is written to a record, too.
The package has no code for this script: each child process is this script, which replaces ``os.fsync`` and a few
methods of the package and then starts the run.
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

from check_record import Check, add_option, at_least

from rmsexp.records import record

# SHARES: how many of 20 kills hit each place. COUNTS: a child is killed when it reaches its place for the n-th time,
# with n drawn between these numbers. They are small enough for the kill to come before the run ends, and large enough
# for most children to make progress.
SHARES = {"checkpoint": 3, "rename": 2, "metrics": 4, "evaluation": 4, "warmup": 3}
COUNTS = {"checkpoint": (1, 2), "rename": (1, 2), "metrics": (3, 4), "evaluation": (1, 2), "warmup": (1, 1)}
COUNTS["random"] = (2, 36)  # steps that a child computes before the kill, including three of warm-up
CHECKPOINT_EVERY = 10
STEP, KILLED = "chaos: step", "chaos: killed"  # beginnings of lines that a child prints


@dataclass(frozen=True)
class Kill:
    """A planned kill: when a child is at ``point`` for the ``count``-th time; "random": soon after ``count`` steps."""

    point: str
    count: int


@dataclass(frozen=True)
class Child:
    """How a child ended: exit status, first and last step that it began (warm-up included), and where it was killed."""

    status: int
    first_step: int | None
    last_step: int | None
    killed_at: str | None


def plan(kills: int, rng: random.Random) -> list[Kill]:
    """Draw ``kills`` kills in random order.

    If one in the warm-up, the metrics or an evaluation is drawn, such a kill is the first, before any checkpoint.
    """
    shares = [point for point, share in SHARES.items() for _ in range(share)]
    points = (shares + ["random"] * kills)[:kills] if kills >= len(shares) else rng.sample(shares, kills)
    rng.shuffle(points)
    first = next((i for i, point in enumerate(points) if point in ("warmup", "metrics", "evaluation")), 0)
    points[0], points[first] = points[first], points[0]
    counts = [rng.randint(*COUNTS[point]) for point in points]
    return [Kill(point, count if i else 1) for i, (point, count) in enumerate(zip(points, counts, strict=True))]


def run(words: Sequence[str], log: Path, kill: Kill | None = None, delay_seconds: float = 0.0) -> Child:
    """Run one child with the overrides ``words``, kill it as planned, and append its output to ``log``.

    A kill at the point "random" comes ``delay_seconds`` after the child has begun ``kill.count`` steps.
    """
    fault = f"{kill.point}:{kill.count}" if kill else "none:0"
    command = [sys.executable, __file__, "--child", fault, *words]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # idle threads do not spin: faster on a shared machine
    steps, killed_at = [], None
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
                killed_at = line.removeprefix(KILLED).strip()
            if kill and kill.point == "random" and killed_at is None and len(steps) == kill.count:
                time.sleep(delay_seconds)
                child.send_signal(signal.SIGKILL)
                killed_at = "anywhere"
    return Child(child.returncode, steps[0] if steps else None, steps[-1] if steps else None, killed_at)


def be_child(fault: str, words: Sequence[str]) -> int:
    """Run the command line, print each step for the parent process, and kill this process at ``fault``, POINT:COUNT."""
    from rmsexp.commands import app
    from rmsexp.task import Extent
    from rmsexp.tasks import cifar10
    from rmsexp.train import loop

    point, count = fault.split(":")
    remaining, updates, metrics_size = int(count), 0, sys.maxsize

    def die(where: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            print(f"{KILLED} {where}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def truncate(path: Path, size: int, where: str) -> None:
        """Cut a file to ``size`` bytes, as if the process were killed while writing it, and restore it if it is not."""
        content = path.read_bytes()
        os.truncate(path, size)
        die(where)
        path.write_bytes(content)

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        size, temporary = os.path.getsize(path), re.fullmatch(r"\.(\w+\.pt)\..+\.tmp", path.name)  # noqa: PTH202
        if point == "checkpoint" and temporary:
            truncate(path, size // 2, f"{temporary[1]} half written")
        elif point == "metrics" and path.name == record.METRICS and size > metrics_size:
            truncate(path, (metrics_size + size) // 2, "the new lines of metrics.jsonl half written")
        elif point == "rename" and (path / "previous.pt").exists() and not (path / "last.pt").exists():
            die("last.pt renamed to previous.pt, no new one yet")
        original_fsync(descriptor)

    def append(folder: record.RunFolder, rows: list[record.Row]) -> int:
        nonlocal metrics_size
        metrics_size = folder.metrics_path.stat().st_size if folder.metrics_path.exists() else 0
        return original_append(folder, rows)

    def update(self: loop.Trainer, step: int, batches: Sequence[Any]) -> Any:
        nonlocal updates
        updates += 1
        print(STEP, step, flush=True)
        result = original_update(self, step, batches)
        if point == "warmup" and updates == 2:
            die("after its second step")
        return result

    def evaluate(self: cifar10.Task, model: Any, extent: Extent) -> Any:
        hook = model.register_forward_hook(lambda *_: die(f"in batch {count}"))
        results = original_evaluate(self, model, extent)
        hook.remove()
        return results

    original_fsync, os.fsync = os.fsync, fsync  # type: ignore[assignment]
    original_append, record.RunFolder.append = record.RunFolder.append, append  # type: ignore[method-assign]
    original_update, loop.Trainer._update = loop.Trainer._update, update  # type: ignore[method-assign]
    original_evaluate = cifar10.Task.evaluate
    if point == "evaluation":
        cifar10.Task.evaluate = evaluate  # type: ignore[method-assign]
    return app.main(words)


def compare(reference: Path, other: Path) -> list[str]:
    """Return a line for each difference between the contents of two finished runs."""
    return differences(run_content(reference), run_content(other))


def run_content(results: Path) -> dict[str, Any]:
    """Return the content of the only run in ``results`` (see :func:`content`)."""
    (folder,) = record.find_runs(results)
    return content(record.RunFolder(folder))


def content(folder: record.RunFolder) -> dict[str, Any]:
    """Return the content of a finished run, without times and file sizes, which differ in repetitions.

    The content of a damaged checkpoint is the message with which it is refused.
    """
    from rmsexp.train import checkpoint

    rows, warning = folder.read_metrics()
    status = folder.read_status()
    result: dict[str, Any] = {
        "files": sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*")),
        "status": (status["status"], status["step"], warning),
        "metrics": [row | {"seconds": None} for row in rows],
    }
    for path in folder.checkpoints.glob("*.pt"):
        try:
            result[path.name] = checkpoint.read(path)
        except checkpoint.CheckpointError as error:
            result[path.name] = str(error)
            continue
        result[path.name].pop("clock", None)
        for key in ("metrics_bytes", "metrics_digest"):
            result[path.name].get("state", {}).pop(key, None)
    return result


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """Return a line for each place where two nested values differ in type, keys, layout or bits."""
    import torch

    if type(a) is not type(b):
        return [f"{place}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, torch.Tensor):
        same_layout = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return [] if same_layout and a.numpy().tobytes() == b.numpy().tobytes() else [f"{place}: the tensors differ"]
    if isinstance(a, dict) and a.keys() == b.keys():
        return [line for key in a for line in differences(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [line for i in range(len(a)) for line in differences(a[i], b[i], f"{place}/{i}")]
    return [] if repr(a) == repr(b) else [f"{place}: {a!r:.200}, {b!r:.200}"]


def kill_and_compare(kills: Sequence[Kill], words: Sequence[str], root: Path, rng: random.Random) -> list[str]:
    """Do an uninterrupted run as reference, then the killed run: one child per kill, and a last one that ends the run.

    Both runs are in ``root``. Prints a line per kill and returns a line for each error or difference.
    """
    log, errors = root / "log.txt", []
    reference, killed = ([*words, f"results={root / name}"] for name in ("reference", "killed"))
    if run(reference, log).status != 0:
        return [f"the reference failed: see {log}"]
    print(f"{'kill':>4}  {'resumed at':>10}  {'killed in step':>14}  where", flush=True)
    for number, kill in enumerate(kills, 1):
        child = run(killed, log, kill, rng.uniform(0, 0.2))
        print(
            f"{number:4}  {child.first_step!s:>10}  {child.last_step!s:>14}  {kill.point}: {child.killed_at}",
            flush=True,
        )
        if child.status != -signal.SIGKILL or child.killed_at is None:
            errors.append(
                f"kill {number} ({kill.point}) did not happen: the child ended with status {child.status}; see {log}"
            )
    last = run(killed, log)
    print(f"last  {last.first_step!s:>10}  to the end: exit status {last.status}")
    if last.status != 0:
        return [*errors, f"the last child failed: see {log}"]
    return errors + compare(root / "reference", root / "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=at_least(1), default=20, help="number of kills (20)")
    parser.add_argument("--norm", default="bn", help="norm of the run (bn)")
    parser.add_argument("--steps", type=int, help="number of steps of the run (default: enough for all kills)")
    parser.add_argument("--data-root", type=Path, help="folder of the data (data.root)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plan of kills (0)")
    parser.add_argument(
        "--sweep", action="store_true", help="disturb a sweep of twelve small runs by faults of many kinds"
    )
    parser.add_argument("--faults", type=int, default=20, help="number of faults in the sweep (20)")
    add_option(parser, None)
    parser.add_argument("--child", metavar="POINT:COUNT", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    options = parser.parse_args()
    if options.child:
        return be_child(options.child, options.overrides)
    of_run = {key: parser.get_default(key) for key in ("kills", "norm", "steps", "data_root")} | {"overrides": []}
    if options.sweep and any(getattr(options, key) != default for key, default in of_run.items()):
        parser.error("--sweep takes --faults, --seed and --results only: its runs are fixed")
    check = Check("chaos_sweep" if options.sweep else "chaos", options.results)
    start, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-chaos-"))
    if options.sweep:
        import chaos_sweep

        report = chaos_sweep.disturb_and_report(options.faults, root, options.seed)
        seconds = time.monotonic() - start
        print(f"{seconds:.0f} s ({root})")
        check.write({"faults": options.faults, "seconds": seconds} | report.content())
        return 1 if report.errors else 0
    rng = random.Random(options.seed)
    steps = options.steps or CHECKPOINT_EVERY * (options.kills + 10)
    words = [f"norm={options.norm}", f"schedule.steps={steps}", f"checkpoint_every={CHECKPOINT_EVERY}"]
    words += [
        "log_every=5",
        "eval_every=20",
        "batch_size=20",
        *([f"data.root={options.data_root}"] if options.data_root else []),
    ]
    errors = kill_and_compare(plan(options.kills, rng), [*words, *options.overrides], root, rng)
    print("\n".join(errors) or "bit-identical to the run that was never interrupted", f"({root})")
    seconds = time.monotonic() - start
    print(f"{seconds:.0f} s")
    check.write({"kills": options.kills, "errors": errors, "seconds": seconds})
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
