"""Do runs on two nodes of Ray, remove one in the middle, and check that nothing is lost or different.

    python scripts/ray_node_lost.py [KEY=VALUE ...]

The runs are those of scripts/preempted_sweep.py, with checkpoints on their way, because a node is lost without warning;
words KEY=VALUE change them. First a sweep does them undisturbed, one after the other. Then ``python -m rmsexp.campaign
NAME --on ray=ADDRESS`` does them on a cluster of two nodes with two cores each, both on this machine. Node 2 is removed
when a third of the runs have ended, and each of its cores trains a run. In the end

- all runs have finished, and those that node 2 trained were continued by node 1, from their last checkpoints;
- metrics and weights of all runs equal those of the undisturbed sweep, bit for bit, except for times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import campaign_kills
import chaos
import chaos_sweep
import preempted_sweep
import psutil
import yaml
from check_record import Check, add_option
from preempted_sweep import NORMS, STEPS
from ray.cluster_utils import Cluster

from rmsexp.records import record

NAME = "twelve_runs"
SEEDS = (0, 1, 2)
CORES = 2  # of each node
EVERY = 20  # steps from one checkpoint to the next
TASK, *WORDS = (*preempted_sweep.WORDS, f"checkpoint_every={EVERY}")  # of two words with one key the last counts
RUNS = len(NORMS) * len(SEEDS)
ITEM = {  # a table that needs these runs
    "title": "Twelve runs",
    "caption": "Those of scripts/preempted_sweep.py.",
    "seeds": list(SEEDS),
    "groups": [{"runs": {"task": TASK.removeprefix("task=")}, "norms": dict(zip(NORMS, NORMS, strict=True))}],
    "columns": [{"heading": "Recall", "quantity": "valid image_recall"}],
}
POLL_SECONDS = 0.05


@dataclass
class Observer:
    """What the processes of a cluster do.

    Attributes:
        nodes: of each node, the process that starts its workers (Ray's raylet).
        places: the numbers of the nodes that trained each run, in order, by process id; runs are named by folders.
        ended: the number of runs that have ended.
        steps: the steps that the runs have reached which are trained at this moment.
    """

    results: Path
    nodes: Sequence[psutil.Process]
    places: dict[str, dict[int, int]] = field(default_factory=dict)
    ended: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Set the attributes to what is so at this moment."""
        self.ended, self.steps = 0, {}
        for path in self.results.glob(f"*/*/*/seed*/{record.STATUS}"):
            folder, run = record.RunFolder(path.parent), str(path.parent.relative_to(self.results))
            status = folder.read_status()
            self.ended += status["status"] in record.ENDED
            if status["status"] == "running":
                rows = folder.read_last_rows(1 << 12) if folder.metrics_path.exists() else []
                self.steps[run] = int(rows[-1]["step"]) if rows else 0
                places, pid = self.places.setdefault(run, {}), status["process"]
                if pid not in places and (node := self._node_of(pid)):
                    places[pid] = node

    def _node_of(self, pid: int) -> int | None:
        """Return the number of the node that has a process; None if it has just ended."""
        with suppress(psutil.NoSuchProcess):
            parents = psutil.Process(pid).parents()
            return next((number for number, node in enumerate(self.nodes, 1) if node in parents), None)
        return None

    def trained_by(self, node: int) -> dict[str, int]:
        """Return the runs that a node trains, with the steps that they have reached."""
        return {run: step for run, step in self.steps.items() if list(self.places[run].values())[-1:] == [node]}


def may_be_lost(observer: Observer) -> bool:
    """Return whether a third of the runs have ended, and each core of node 2 is in the middle of a run."""
    trained = observer.trained_by(2).values()
    middle = [step for step in trained if EVERY < step <= STEPS - 2 * EVERY]
    return observer.ended >= RUNS // 3 and len(middle) == CORES


def remove(cluster: Cluster, node: Any) -> None:
    """Remove a node with all its processes, without warning."""
    workers = raylet(node).children(recursive=True)
    cluster.remove_node(node, allow_graceful=False)
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()


def raylet(node: Any) -> psutil.Process:
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def lose_a_node(argv: Sequence[str], results: Path, log: Path) -> dict[str, Any]:
    """Do the runs on two nodes, and remove one in the middle.

    Return ``errors``, a line for each; ``ended``, the number of runs that had ended before; ``lost``, the steps that
    the runs of the lost node had reached; and ``places``, the numbers of the nodes that trained each run, in order.
    """
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, "include_dashboard": False})
    second = cluster.add_node(num_cpus=CORES)
    observer = Observer(results, [raylet(cluster.head_node), raylet(second)])
    command = [sys.executable, "-m", "rmsexp.campaign", *argv, "--on", f"ray={cluster.address}"]
    ended, lost = 0, dict[str, int]()
    try:
        with log.open("ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as campaign:
            while campaign.poll() is None:
                time.sleep(POLL_SECONDS)
                observer.look()
                if not lost and may_be_lost(observer):
                    ended, lost = observer.ended, observer.trained_by(2)
                    remove(cluster, second)
                    print(f"node 2 is removed: {ended} runs have ended, its own are at {[*lost.values()]}", flush=True)
    finally:
        cluster.shutdown()
    errors = [] if lost else ["no node was removed, because node 2 was never in the middle of two runs"]
    errors += [f"the command ended with status {campaign.returncode}"] if campaign.returncode else []
    places = {run: list(numbers.values()) for run, numbers in sorted(observer.places.items())}
    return {"errors": errors, "ended": ended, "lost": lost, "places": places}


def continued(lost: Sequence[str], sessions: dict[str, list[int]], places: dict[str, list[int]]) -> list[str]:
    """Return a line for each run of the lost node that was not continued by the other one from a checkpoint."""
    return [
        f"{run}: its sessions begin at steps {sessions[run]}, on nodes {places[run]}"
        for run in lost
        if len(sessions[run]) != 2 or sessions[run][1] not in range(EVERY, STEPS, EVERY) or places[run] != [2, 1]
    ]


def lose_and_compare(root: Path, words: Sequence[str] = ()) -> dict[str, Any]:
    """Do the runs undisturbed, and on two nodes, below the folder ``root``.

    Return what :func:`lose_a_node` does, with all errors, and ``sessions``: the steps at which those of each run on two
    nodes began.
    """
    os.environ |= {"OMP_WAIT_POLICY": "passive", "RAY_USAGE_STATS_ENABLED": "0"}
    path, log = root / "configs" / "item" / f"{NAME}.yaml", root / "log.txt"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(ITEM))
    folders = {name: root / name / "results" for name in ("undisturbed", "on two nodes")}
    swept = [TASK, f"norm={','.join(NORMS)}", f"seed={','.join(map(str, SEEDS))}", *WORDS, *words]
    if status := preempted_sweep.sweep(swept, folders["undisturbed"], log).wait():
        return {"errors": [f"the undisturbed sweep ended with status {status}; see {log}"]}
    print("the undisturbed sweep has ended", flush=True)
    results = folders["on two nodes"]
    argv = [NAME, "--config-dir", str(root / "configs"), f"results={results}", *WORDS, *words]
    found = lose_a_node(argv, results, log)
    if found["errors"]:
        return found | {"errors": [f"{error}; see {log}" for error in found["errors"]]}
    sessions = campaign_kills.starts(results)
    expected, actual = (chaos_sweep.contents(folder.parent) for folder in folders.values())
    errors = [] if len(actual) == RUNS else [f"{len(actual)} of {RUNS} runs have finished; see {log}"]
    errors += [*continued(list(found["lost"]), sessions, found["places"]), *campaign_kills.sessions(results)]
    return found | {"errors": errors + chaos.differences(expected, actual), "sessions": sessions}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the runs")
    add_option(parser, None)
    options = parser.parse_args()
    check = Check("ray_node_lost", options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-ray-"))
    found = lose_and_compare(root, options.words)
    print("\n".join(found["errors"]) or "all runs equal those of the undisturbed sweep")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    check.write({"nodes": 2, "cores": CORES, "runs": RUNS, **found, "seconds": seconds})
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
