"""Disturb small runs in one of five ways, and check that nothing is lost, repeated or different.

    python scripts/disturb.py PART [--times N] [--seed 0] [--results DIR] [KEY=VALUE ...]

Each part first does its runs undisturbed. Then it does them in another folder and disturbs them at random moments. In
the end metrics, weights and statuses of all runs must equal those of the undisturbed ones, bit for bit, except for
times. Words KEY=VALUE change the runs; ``--times`` says how often they are disturbed. The parts:

chaos            kills one run with SIGKILL: while checkpoints and metrics are written, soon after its start, and at
                 random moments, of which many lie in evaluations
stopped_sweep    stops the command of a sweep under joblib by SIGKILL, SIGTERM, SIGHUP and SIGINT, and repeats it
preempted_sweep  sends SIGUSR2 to jobs of submitit's local executor, as SLURM does before it takes a node away
campaign_kills   kills one of two workers of a campaign with SIGKILL, and replaces it
ray_node_lost    removes one of the two nodes of a Ray cluster in the middle of a campaign's runs

Commands are typed as a user types them, and runs are judged by their records alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from check_record import Check, add_option

from rmsexp.system import command_line

Found = dict[str, Any]  # results of a part, as its record has them
POLL_SECONDS = 0.02

# ----------------------------------------------------------------------------------------------- reading records


def runs_below(results: Path) -> list[Path]:
    """Return the folders of all runs below a folder."""
    return sorted(path.parent for path in results.rglob("status.json"))


def status_of(folder: Path) -> Found:
    """Return the content of a run's ``status.json``, which is written atomically."""
    return json.loads((folder / "status.json").read_bytes())  # type: ignore[no-any-return]


def running(results: Path) -> dict[Path, tuple[int, int]]:
    """Return, by folder, the process id and the last recorded step (or 0) of each run with the status "running"."""
    found = {}
    for folder in runs_below(results):
        status, metrics = status_of(folder), folder / "metrics.jsonl"
        if status["status"] == "running":
            lines = metrics.read_text().splitlines() if metrics.exists() else []
            with suppress(ValueError):  # the last line is being written
                found[folder] = status["process"], int(json.loads(lines[-1])["step"]) if lines else 0
    return found


def starts(results: Path) -> dict[str, list[int]]:
    """Return the steps at which the sessions of each run began, by the run's folder below ``results``."""
    sessions = {path.parent: json.loads(path.read_text())["sessions"] for path in sorted(results.rglob("run.json"))}
    return {str(run.relative_to(results)): [one["from_step"] for one in parts] for run, parts in sessions.items()}


def run_content(results: Path) -> Found:
    """Return the content of the only run below ``results`` (see :func:`content`)."""
    (folder,) = runs_below(results)
    return content(folder)


def content(folder: Path) -> Found:
    """Return a run's file names, status, metrics and checkpoints, without times, digests and process ids."""
    import torch

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    result: Found = {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "status": {key: part for key, part in status_of(folder).items() if key not in ("process", "digest", "metrics")},
        "metrics": [json.loads(line) | {"seconds": None} for line in lines],
    }
    for path in (folder / "checkpoints").glob("*.pt"):
        result[path.name] = torch.load(path, map_location="cpu", weights_only=True)
        result[path.name].pop("clock", None)
        for name in ("metrics_bytes", "metrics_digest"):
            result[path.name].get("state", {}).pop(name, None)
    return result


def contents(results: Path) -> dict[str, Found]:
    """Return the content of each run, by its folder below ``results``, without what an interruption may change."""
    found = {str(folder.relative_to(results)): content(folder) for folder in runs_below(results)}
    may_differ = ("files", "previous.pt")
    return {
        run: {name: part for name, part in of_run.items() if name not in may_differ} for run, of_run in found.items()
    }


def compare(undisturbed: Path, disturbed: Path) -> list[str]:
    """Return a line for each difference, and each disturbed run whose sessions do not start at rising steps from 0."""
    lines = [
        f"{run}: its sessions begin at steps {steps}"
        for run, steps in starts(disturbed).items()
        if steps[:1] != [0] or steps != sorted(set(steps))
    ]
    return lines + differences(contents(undisturbed), contents(disturbed))


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


# ------------------------------------------------------------------------------------------------- one run: chaos

# A command is done by a copy of this process, because importing PyTorch takes longer than such a run. The copy replaces
# os.fsync, so that this script knows when a file is written.

Hook = Callable[[int], None]  # what a copy does with the descriptor of a file, before it is written through to the disk
CHECKPOINT_EVERY = 10
# SHARES: how many of 20 kills hit each place. COUNTS: the copy is killed when it reaches its place for the n-th time,
# with n drawn between these numbers; for "start" and "random", soon after it has written n files.
SHARES = {"checkpoint": 3, "rename": 2, "metrics": 4, "start": 4, "random": 7}
COUNTS = {"checkpoint": (1, 2), "rename": (1, 2), "metrics": (3, 4), "start": (1, 4), "random": (8, 40)}


@dataclass(frozen=True)
class Copy:
    """A copy of this process that does a command. ``reading``: a pipe with a byte for each call of fsync."""

    pid: int
    reading: int

    def end(self) -> int:
        """Wait for the end of the copy and return its exit status, or minus the number of the signal that ended it."""
        while os.read(self.reading, 1 << 16):
            pass
        os.close(self.reading)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(words: Sequence[str], log: Path, hook: Hook | None = None) -> Copy:
    """Start ``python -m`` with these words in a copy of this process, which prints to the file ``log``."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    reading, writing = os.pipe()
    with log.open("ab") as file:
        pid = os.fork()
        if not pid:
            os.close(reading)
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
            _be_copy(words, writing, hook)
    os.close(writing)
    return Copy(pid, reading)


def _be_copy(words: Sequence[str], writing: int, hook: Hook | None) -> NoReturn:
    status, original = 1, os.fsync

    def fsync(descriptor: int) -> None:
        os.write(writing, b".")
        if hook:
            hook(descriptor)
        original(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


@dataclass(frozen=True)
class Kill:
    """A planned kill of a process when it reaches ``point``, a key of ``SHARES``, for the ``count``-th time."""

    point: str
    count: int


def killing(kill: Kill) -> Hook:
    """Return the hook that kills its process while a file is half written or, at "rename", last.pt is missing."""
    remaining = kill.count

    def hook(descriptor: int) -> None:
        nonlocal remaining
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        checkpoints = path if path.is_dir() else path.parent
        if kill.point == "checkpoint":
            here = re.fullmatch(r"\.\w+\.pt\..+\.tmp", path.name) is not None
        elif kill.point == "metrics":
            here = path.name == "metrics.jsonl" and path.stat().st_size > 0
        else:  # last.pt has been renamed, and there is no new one yet
            here = (checkpoints / "previous.pt").exists() and not (checkpoints / "last.pt").exists()
        remaining -= here
        if here and remaining == 0:
            if kill.point == "checkpoint":
                os.truncate(path, path.stat().st_size // 2)
            elif kill.point == "metrics":  # the last line is half written
                data = path.read_bytes()
                os.truncate(path, (data[:-1].rfind(b"\n") + 1 + len(data)) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def chaos(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Kill one run ``times`` times. The default norm is bn, whose running statistics are lost most easily."""
    from rmsexp import config

    log, steps = root / "log.txt", CHECKPOINT_EVERY * (times + 10)
    run = ["norm=bn", f"schedule.steps={steps}", f"checkpoint_every={CHECKPOINT_EVERY}", "log_every=5", "eval_every=20"]
    run += ["batch_size=20", "threads=1", *words]
    config.job(run)  # imports what the copies need
    reference, killed = (["rmsexp", *run, f"results={root / name}"] for name in ("reference", "killed"))
    statuses, errors = [start(reference, log).end()], list[str]()
    for number, point in enumerate(rng.choices(list(SHARES), SHARES.values(), k=times), 1):
        kill, by_hook = Kill(point, rng.randint(*COUNTS[point])), point not in ("start", "random")
        copy = start(killed, log, killing(kill) if by_hook else None)
        if not by_hook and all(os.read(copy.reading, 1) for _ in range(kill.count)):
            time.sleep(rng.uniform(0, 0.5))
            os.kill(copy.pid, signal.SIGKILL)
        status = copy.end()
        print(f"{number:4}  {point:10}  {[*starts(root / 'killed').values()]}", flush=True)
        if status != -signal.SIGKILL:
            errors.append(f"kill {number} ({point}) did not happen: the process ended with status {status}")
    statuses.append(start(killed, log).end())
    if any(statuses):
        return {"kills": times, "errors": [*errors, f"the exit statuses are {statuses}: see {log}"]}
    errors += differences(*(run_content(root / name) for name in ("reference", "killed")))
    return {"kills": times, "errors": errors}


# -------------------------------------------------------------------------------------- commands as a user types them

TASK = ("task=order_embedding", "model.hidden=8", "model.embedding=8", "batch_size=8", "data.valid_images=20")
TASK += ("log_every=5", "threads=1")
STEPS, EVERY = 300, 20  # of each run of a sweep; from one checkpoint to the next, where there are some on the way
NORMS = ("none", "ln", "rms", "prms")
SWEEP = ("rmsexp", "-m", *TASK, f"schedule.steps={STEPS}", "eval_every=100", f"norm={','.join(NORMS)}", "seed=0,1,2")
CAMPAIGN = ("rmsexp.campaign", "quality", *TASK, "norms=[ln,rms]", "margin=5")
CAMPAIGN += ("tune.over.optim.lr=[0.001,0.002,0.004]", "final.min_seeds=3", "final.max_seeds=4")
CAMPAIGN += ("schedule.steps=60", f"checkpoint_every={EVERY}")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
CORES, RAY = 2, ("ray", "hydra_plugins.hydra_ray_launcher")  # cores of each node; what the launcher needs


def typed(words: Sequence[str], results: Path) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these words in a new process that prints to the file ``log.txt`` beside ``results``."""
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with results.with_name("log.txt").open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", *words, f"results={results}"], stdout=file, stderr=file)


def undisturbed(words: Sequence[str], root: Path) -> Path:
    """Do a command, and return the folder of its results. Raises: SystemExit if it fails."""
    if status := typed(words, root / "undisturbed").wait():
        sys.exit(f"the undisturbed command ended with status {status}; see {root / 'log.txt'}")
    return root / "undisturbed"


def watched(process: subprocess.Popen[bytes], results: Path) -> Iterator[dict[Path, tuple[int, int]]]:
    """Yield :func:`running` of ``results`` again and again, until the process has ended."""
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        yield running(results)


def stopped_sweep(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Stop the command of a sweep ``times`` times, soon after a run has passed a random step, and repeat it."""
    shared, results, stops = [*SWEEP, f"checkpoint_every={EVERY}", *words], root / "stopped", 0
    expected, command = undisturbed(shared, root), [*shared, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    for number in range(times):
        step, signum, process = rng.randrange(STEPS - 100), SIGNALS[number % len(SIGNALS)], typed(command, results)
        if any(reached >= step for at_work in watched(process, results) for _, reached in at_work.values()):
            process.send_signal(signum)
            stops += 1
        print(f"{number + 1:4}  {signum.name:8} after step {step}: exit status {process.wait()}", flush=True)
        # some runs go on after the command that started them
        while any(Path(f"/proc/{pid}").exists() for pid, _ in running(results).values()):
            time.sleep(POLL_SECONDS)
    status = typed(command, results).wait()
    errors = [f"the last command ended with status {status}"] if status else []
    return {"stops": stops, "errors": errors + compare(expected, results)}


def preempted_sweep(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Send SIGUSR2 to ``times`` of twelve jobs, which submitit then requeues.

    Each saves a checkpoint at the signal, the only one before its end, and must go on from there.
    """
    shared = [*SWEEP, *words, f"checkpoint_every={STEPS}"]
    expected, results = undisturbed(shared, root), root / "preempted"
    chosen = rng.sample([(norm, f"seed{seed}") for norm in NORMS for seed in range(3)], times)
    waiting = {name: rng.randrange(5, STEPS - 100) for name in chosen}
    reached: dict[tuple[str, str], int] = {}  # the last recorded step of each job when its signal came
    process = typed([*shared, "hydra/launcher=submitit_local"], results)
    for at_work in watched(process, results):
        for folder, (job, step) in at_work.items():
            name = folder.parent.name, folder.name
            if name in waiting and step >= waiting[name]:
                del waiting[name]
                os.kill(job, signal.SIGUSR2)
                reached[name] = step
                print(f"SIGUSR2 after step {step} or later: {folder.relative_to(results)}", flush=True)
    errors = [f"{name} ended before its signal" for name in waiting]
    errors += [f"the command ended with status {process.returncode}"] if process.returncode else []
    for run, steps in starts(results).items():
        least = reached.get((Path(run).parent.name, Path(run).name))
        if len(steps) != (1 if least is None else 2) or (least is not None and not least <= steps[1] < STEPS):
            errors.append(f"{run}: its sessions begin at steps {steps}; SIGUSR2 came after {least}")
    return {"preempted": len(reached), "errors": errors + compare(expected, results)}


def campaign_kills(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Kill one of two workers of a campaign ``times`` times while it trains, and replace it."""
    command, results = [*CAMPAIGN, *words], root / "killed"
    expected, workers, kills = undisturbed(command, root), [typed(command, results) for _ in range(2)], 0
    while kills < times and any(worker.poll() is None for worker in workers):
        time.sleep(rng.uniform(0, 1))
        training = {process for process, _ in running(results).values()}
        for place, worker in enumerate(workers):
            if worker.pid in training and kills < times:
                worker.kill()
                kills += worker.wait() == -signal.SIGKILL
                workers[place] = typed(command, results)
                print(f"{kills:4}  worker {worker.pid} killed", flush=True)
    statuses = [worker.wait() for worker in workers]
    errors = [f"the workers ended with statuses {statuses}"] if any(statuses) else []
    errors += [f"only {kills} kills happened"] if kills < times else []
    if (more := sum(len(steps) - 1 for steps in starts(results).values())) > kills:
        errors.append(f"runs were continued {more} times, after {kills} kills")
    errors += differences(*(planned(folder) for folder in (expected, results)))
    return {"kills": kills, "errors": errors + compare(expected, results)}


def planned(results: Path) -> list[Found]:
    """Return plan and registration of the only campaign below ``results``, without dates."""
    (path,) = results.glob("campaigns/*/campaign.json")
    plan, registered = (json.loads(file.read_text()) for file in (path, path.with_name("registered.json")))
    del plan["registered"]["date"], registered["date"]
    return [plan, registered]


def ray_node_lost(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:  # noqa: ARG001
    """Do a campaign on two nodes on this machine, and remove one of them while its workers train.

    The workers on it end without warning. The other node must continue their runs from the last checkpoints.
    """
    import psutil
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    expected, results, lost = undisturbed([*CAMPAIGN, *words], root), root / "on two nodes", dict[str, int]()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, "include_dashboard": False})
    second = cluster.add_node(num_cpus=CORES)
    node, ray = psutil.Process(second.all_processes["raylet"][0].process.pid), "hydra.launcher.ray.init"
    launcher = ["hydra/launcher=ray", f"{ray}.address={cluster.address}", f"+{ray}.object_store_memory=null"]
    process = typed([*CAMPAIGN, *words, "--jobs", str(2 * CORES), *launcher], results)
    try:
        for at_work in watched(process, results):
            if lost:
                continue
            there = {worker.pid: worker for worker in node.children(recursive=True)}
            training = {run: step for run, (worker, step) in at_work.items() if worker in there and step > EVERY}
            if training:
                lost = {str(run.relative_to(results)): step for run, step in training.items()}
                cluster.remove_node(second, allow_graceful=False)
                for worker in there.values():
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()
                print(f"a node is removed; its runs are at {[*lost.values()]}", flush=True)
    finally:
        cluster.shutdown()
    sessions = {run: steps for run, steps in starts(results).items() if run in lost}
    errors = [] if lost else ["no node was removed, because it was never in the middle of a run"]
    errors += [f"the command ended with status {process.returncode}"] if process.returncode else []
    errors += [f"{run}: its sessions begin at {steps}" for run, steps in sessions.items() if steps[1:] in ([], [0])]
    return {"lost": lost, "sessions": sessions, "errors": errors + compare(expected, results)}


# ------------------------------------------------------------------------------------------------------ the command

Part = Callable[[int, Path, random.Random, Sequence[str]], Found]
PARTS: dict[str, tuple[Part, int]] = {  # with the number of times
    "chaos": (chaos, 20),
    "stopped_sweep": (stopped_sweep, 8),
    "preempted_sweep": (preempted_sweep, 12),
    "campaign_kills": (campaign_kills, 10),
    "ray_node_lost": (ray_node_lost, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=command_line.number(int, 0), help="how often the runs are disturbed")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (0)")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the runs")
    add_option(parser, None)
    options = parser.parse_args()
    part, times = PARTS[options.part]
    if options.part == "ray_node_lost" and not all(map(importlib.util.find_spec, RAY)):
        parser.error("ray_node_lost needs Ray: pip install -e '.[ray]'")
    record = Check(options.part, options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-disturb-"))
    found = part(times if options.times is None else options.times, root, random.Random(options.seed), options.words)
    print("\n".join(found["errors"]) or "nothing was lost, repeated or different")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    record.write(found | {"seconds": seconds})
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
