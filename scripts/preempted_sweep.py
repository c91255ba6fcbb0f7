"""Pre-empt and kill the jobs of a sweep that submitit does, and check that nothing is lost or different.

    python scripts/preempted_sweep.py [--runs 12] [--kills 2] [--seed 0] [KEY=VALUE ...]

The runs are small ones on synthetic captions; words KEY=VALUE change them. First a sweep does them undisturbed, one
after the other. Then submitit's local executor does them as jobs, all at once. Each run gets SIGUSR2 at a random
moment, as from SLURM before it takes a job's node away; submitit requeues the job. After that some runs, drawn at
random, get SIGKILL, too; their jobs end without a result. The command is then repeated once. In the end

- the first command has exit status 1 if there were kills, and the second one 0;
- no run went back behind the step at which SIGUSR2 came, although no run saves checkpoints on its way;
- metrics and weights of all runs equal those of the undisturbed sweep, bit for bit, except for times.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chaos
import chaos_sweep
from check_record import Check, add_option

from rmsexp.records import record

STEPS = 300
WORDS = (
    *("task=order_embedding", "model.hidden=8", "model.embedding=8", "batch_size=8", "data.valid_images=20"),
    *(f"schedule.steps={STEPS}", "eval_every=100", f"checkpoint_every={STEPS}", "log_every=5", "threads=1"),
)
NORMS = ("none", "ln", "rms", "prms")
FIRST, LAST = 5, STEPS - 100  # the least and greatest step at which a run gets a signal
POLL_SECONDS = 0.02


@dataclass
class Target:
    """A run that gets signals.

    ``moments``: the signals that it shall still get, and after which step each. ``reached``: the last step that was
    recorded when it got SIGUSR2.
    """

    norm: str
    seed: int
    moments: list[tuple[signal.Signals, int]]
    reached: int = 0

    def hit(self, results: Path) -> None:
        """Send the next signal if there is one and its moment has come."""
        found = list(results.glob(f"*/*/{self.norm}/seed{self.seed}/{record.STATUS}"))
        if not found or not self.moments:
            return
        folder, (number, step) = record.RunFolder(found[0].parent), self.moments[0]
        try:
            status, rows = folder.read_status(), folder.read_last_rows(1 << 12)
        except FileNotFoundError:  # it has no metrics yet
            return
        reached = int(rows[-1]["step"]) if rows else 0
        if status["status"] == "running" and reached >= step:
            os.kill(status["process"], number)
            del self.moments[0]
            if number == signal.SIGUSR2:
                self.reached = reached
            print(f"{number.name:8} after step {reached} or later: {self.norm} seed {self.seed}", flush=True)


def targets(norms: Sequence[str], seeds: Sequence[int], kills: int, rng: random.Random) -> list[Target]:
    """Return the runs, with their signals at random steps. ``kills``: how many get SIGKILL after SIGUSR2."""
    runs = list(itertools.product(norms, seeds))
    killed = rng.sample(runs, kills)
    return [Target(*run, _moments(run in killed, rng)) for run in runs]


def _moments(killed: bool, rng: random.Random) -> list[tuple[signal.Signals, int]]:
    steps = sorted(rng.sample(range(FIRST, LAST), 1 + killed))
    return list(zip((signal.SIGUSR2, signal.SIGKILL), steps, strict=False))


def sweep(words: Sequence[str], results: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a sweep that writes to ``results``, and prints to the file ``log``."""
    with log.open("ab") as file:
        command = [sys.executable, "-m", "rmsexp", "-m", *words, f"results={results}"]
        return subprocess.Popen(command, stdout=file, stderr=file)


def disturb(command: subprocess.Popen[bytes], results: Path, waiting: Sequence[Target]) -> list[str]:
    """Send the signals while a sweep goes on. Return a line for each signal that was not sent."""
    while command.poll() is None:
        time.sleep(POLL_SECONDS)
        for target in waiting:
            target.hit(results)
    return [f"{target.norm} seed {target.seed} ended before {target.moments}" for target in waiting if target.moments]


def lost_steps(results: Path, targets: Sequence[Target]) -> list[str]:
    """Return a line for each run that was not continued exactly once, or from a step before SIGUSR2 came."""
    lines = []
    for target in targets:
        for folder in results.glob(f"*/*/{target.norm}/seed{target.seed}"):
            starts = [session["from_step"] for session in record.RunFolder(folder).read_run()["sessions"]]
            if not (len(starts) == 2 and starts[0] == 0 and max(FIRST, target.reached) <= starts[1] < STEPS):
                lines.append(f"{folder}: its sessions begin at steps {starts}; SIGUSR2 came after {target.reached}")
    return lines


def preempt_and_compare(runs: int, kills: int, root: Path, seed: int, words: Sequence[str] = ()) -> list[str]:
    """Do the sweep undisturbed, and disturbed, below the folder ``root``. Return a line for each error."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    norms, seeds = NORMS[: min(runs, len(NORMS))], range(-(-runs // len(NORMS)))
    disturbed = targets(norms, seeds, kills, random.Random(seed))
    asked = [*WORDS, f"norm={','.join(norms)}", f"seed={','.join(map(str, seeds))}", *words]
    launched, log = [*asked, "hydra/launcher=submitit_local"], root / "log.txt"
    results, errors = root / "preempted" / "results", []
    began = time.monotonic()
    if status := sweep(asked, root / "undisturbed" / "results", log).wait():
        return [f"the undisturbed sweep ended with status {status}; see {log}"]
    print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
    first = sweep(launched, results, log)
    errors += disturb(first, results, disturbed)
    second = sweep(launched, results, log).wait()
    if (bool(first.returncode), second) != (kills > 0, 0):
        errors.append(f"the exit statuses are {first.returncode} and {second}; see {log}")
    expected, found = (chaos_sweep.contents(folder.parent) for folder in (root / "undisturbed" / "results", results))
    if len(found) != runs:
        errors.append(f"{len(found)} of {runs} runs have finished; see {log}")
    return [*errors, *lost_steps(results, disturbed), *chaos.differences(expected, found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12, help="number of runs (12)")
    parser.add_argument("--kills", type=int, default=2, help="number of runs that get SIGKILL, too (2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the signals (0)")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the runs")
    add_option(parser, None)
    options = parser.parse_args()
    if options.runs < 1 or (options.runs > len(NORMS) and options.runs % len(NORMS)):
        parser.error(f"--runs must be at most {len(NORMS)}, or a multiple of it")
    if not 0 <= options.kills <= options.runs:
        parser.error(f"--kills must be from 0 to --runs, {options.runs}")
    check = Check("preempted_sweep", options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-preempted-"))
    errors = preempt_and_compare(options.runs, options.kills, root, options.seed, options.words)
    print("\n".join(errors) or "all runs equal those of the undisturbed sweep")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    check.write({"runs": options.runs, "kills": options.kills, "errors": errors, "seconds": seconds})
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
