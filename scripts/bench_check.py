"""Name what became slower from one commit to another: norms, a GRU and an LSTM, and training steps of all tasks.

    python scripts/bench_check.py BEFORE [AFTER] [--cases PATTERN]      # make bench-check BEFORE=main~1
    python scripts/bench_check.py HEAD --cases '* fused' --words norm.impl=eager compile=true   # after: compiled

AFTER is HEAD by default. In each case two processes, one of each commit, take the same blocks of steps in turn. A case
is slower if the 95 % interval of the ratio of times lies above ``TOLERANCE`` in two measurements, each with processes
of its own, since one of 18 cases would often be above it by chance. Takes ten minutes on idle cores. The exit status is
1 if a case is slower. One thread; built-in data.
"""

import argparse
import fnmatch
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import torch
from check_record import Check, add_option

from rmsexp.rules.ratios import Interval, paired_ratio
from rmsexp.system import clock

ROOT = Path(__file__).parents[1]
TOLERANCE, WARMUP_STEPS = 1.02, 3
LAYER = """
import sys, time
import torch
from rmsexp import norms
from rmsexp.models import recurrent
torch.set_num_threads(1)
kind, impl, rows, features = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if kind in ("ln", "rms"):
    layer, x = {"ln": norms.LayerNorm, "rms": norms.RMSNorm}[kind](features, impl=impl), torch.randn(rows, features)
else:
    unit = {"gru": recurrent.GRU, "lstm": recurrent.LSTM}[kind]
    layer, x = unit(norms.RMS(name="rms", impl=impl), kind, features, features), torch.randn(rows, 30, features)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
leaves = [x.requires_grad_(), *layer.parameters()]
def call():
    y = layer(x)
    (y if isinstance(y, torch.Tensor) else y[0]).sum().backward()
    for leaf in leaves:
        leaf.grad = None
print("ready", flush=True)
for line in sys.stdin:
    count = int(line.split()[1])
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    print((time.perf_counter() - start) / count, flush=True)
"""
# Runs in both checkouts, so it uses only what older commits have, too. They may lack train.device and tasks.make.
WORKER = """
import sys, time
from importlib import import_module
from rmsexp import config
from rmsexp.train.step import Stepper
try:
    from rmsexp.train.device import set_up_device
except ImportError:
    from rmsexp.work.runner import set_up_device
job = config.job(sys.argv[1:])
cfg = job.config
device = set_up_device(cfg)
task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
task.prepare(lambda text: None)
model = task.build(job.norm)
task.initialise(model)
if getattr(cfg, "compile", False):
    model.compile(dynamic=True)
try:
    from rmsexp.train.step import Settings
    stepper = Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
except ImportError:
    stepper = Stepper(cfg, task, model, device)
print("ready", flush=True)
for line in sys.stdin:
    first, count = map(int, line.split())
    batches = [task.batches(step) for step in range(first, first + count + 1)]
    stepper.take(first, batches[0])
    start = time.perf_counter()
    for step, batch in enumerate(batches[1:], first + 1):
        stepper.take(step, batch)
    print((time.perf_counter() - start) / count, flush=True)
"""
TASKS = ("cifar10", "rnnsearch", "transformer", "attentive_reader", "order_embedding", "language_model")
# name of a case: its program, the program's words, and the steps per block
CASES = {
    **{
        f"{kind} {impl} {rows}x{features}": (LAYER, [kind, impl, str(rows), str(features)], steps)
        for kind, impl, rows, features, steps in (
            ("ln", "fused", 64, 240, 300),
            ("rms", "fused", 64, 240, 300),
            ("ln", "fused", 3200, 512, 8),
            ("rms", "fused", 3200, 512, 8),
            ("gru", "fused", 32, 256, 2),
            ("lstm", "fused", 64, 240, 2),
        )
    },
    **{
        f"{task} {impl}": (WORKER, ["device=cpu", f"task={task}", "norm=rms", f"norm.impl={impl}", "threads=1"], 3)
        for task in TASKS
        for impl in ("eager", "fused")
    },
}


class Contestant(NamedTuple):
    """A process that runs the program of a case. It reads "FIRST COUNT" and prints the seconds per step."""

    name: str
    process: subprocess.Popen[str]

    def read_line(self) -> str:
        """Return the next line that the process prints. Raises: SystemExit if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def take(self, first: int, count: int) -> float:
        """Take step ``first`` and ``count`` steps after it; return the seconds per step of the latter."""
        assert self.process.stdin is not None
        print(first, count, file=self.process.stdin, flush=True)
        return float(self.read_line())


@contextmanager
def checkouts(*commits: str) -> Iterator[list[Path]]:
    """Inside the context there are folders with the package and the configs of the commits; yields their paths.

    Raises: SystemExit with git's message if a commit does not have them.
    """
    with tempfile.TemporaryDirectory(prefix="rmsexp-commits-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(commits))]
        for path, commit in zip(paths, commits, strict=True):
            command = ["git", "-C", str(ROOT), "archive", commit, "rmsexp", "configs"]
            archive = subprocess.run(command, capture_output=True, check=False)
            if archive.returncode:
                raise SystemExit(archive.stderr.decode().strip())
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                files.extractall(path, filter="data")
        yield paths


def start(case: str, checkout: Path, more: list[str]) -> Contestant:
    """Start the process of a case in a checkout, with ``more`` words."""
    program, words, _ = CASES[case]
    # passive: the threads of an idle contestant must not spin while another contestant is timed
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_WAIT_POLICY": "passive"}
    # memory is kept, as in runs; else page faults make layers of 3200x512 twice as slow in some processes, by chance
    environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    command = [sys.executable, "-P", "-c", program, *words, *more]  # -P: not the caller's package
    process = subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True)
    return Contestant(case, process)


def measure(case: str, folders: list[Path], words: list[str], seconds: float, rounds: int) -> Interval:
    """Return the ratio of the times after and before, over at least ``rounds`` rounds and these ``seconds``.

    ``folders``: of the two commits. ``words``: more words of the program, of the later commit alone.
    """
    contestants, steps = [start(case, *each) for each in zip(folders, ([], words), strict=True)], CASES[case][2]
    order, step, times = random.Random(0), WARMUP_STEPS + 1, list[list[float]]([[], []])
    try:
        for contestant in contestants:
            contestant.read_line()
            contestant.take(0, WARMUP_STEPS)
        watch = clock.Stopwatch()
        while len(times[0]) < rounds or watch.seconds < seconds:
            for number in order.sample(range(2), 2):
                times[number].append(contestants[number].take(step, steps))
            step += steps + 1
    finally:
        for contestant in contestants:
            contestant.process.terminate()
            contestant.process.wait()
    before, after = times
    return paired_ratio(after, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="HEAD", help="another commit (HEAD)")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="only cases whose names match, as 'rms*' (*)")
    parser.add_argument("--seconds", type=float, default=15.0, help="least seconds of a measurement (15)")
    parser.add_argument("--rounds", type=int, default=20, help="least rounds of a measurement (20)")
    parser.add_argument("--words", nargs="+", default=[], metavar="KEY=VALUE", help="more words, of AFTER alone")
    add_option(parser, None)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    check, ratios, slower = Check("bench", arguments.results), dict[str, Interval](), []
    with checkouts(arguments.before, arguments.after) as folders:
        for case in fnmatch.filter(CASES, arguments.cases):
            for attempt in (1, 2):
                ratios[case] = ratio = measure(case, folders, arguments.words, arguments.seconds, arguments.rounds)
                again = attempt == 1 and ratio.low > TOLERANCE
                text = f"{case}: after / before {ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
                print(text + "; measured again" * again, flush=True)
                if not again:
                    break
            slower += [case] * (ratio.low > TOLERANCE)
    check.write({case: ratio._asdict() for case, ratio in ratios.items()})
    print(f"slower: {', '.join(slower)}" if slower else f"nothing is slower (torch {torch.__version__})")
    return int(bool(slower))


if __name__ == "__main__":
    raise SystemExit(main())
