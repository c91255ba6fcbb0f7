"""Do a campaign on two nodes of Ray, remove one while it trains, and check that nothing is lost or different.

    python scripts/ray_node_lost.py [KEY=VALUE ...]

The campaign is that of scripts/campaign_kills.py; words KEY=VALUE change it. First a worker does it, undisturbed. Then
``python -m rmsexp.campaign NAME --on ray=ADDRESS`` does it on a cluster of two nodes with one core each, both on this
machine. When both nodes train, one is removed without warning. In the end all runs have ended, and metrics, weights,
plan, registration and verdicts equal those of the undisturbed campaign, except for times and process ids. The run of
the lost node must have been continued from its last checkpoint, not begun again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import campaign_kills
import chaos
import yaml
from check_record import Check, add_option
from ray.cluster_utils import Cluster

from rmsexp import record

STEPS = 100
AFTER = 10  # a node is removed when runs on both have done this many steps
POLL_SECONDS = 0.05


def training(results: Path) -> int:
    """Return the number of runs that a process trains at this moment, and that have done ``AFTER`` steps."""
    count = 0
    for path in results.glob(f"*/*/*/seed*/{record.METRICS}"):
        folder = record.RunFolder(path.parent)
        rows = folder.read_last_rows(1 << 12)
        count += folder.read_status()["status"] == "running" and bool(rows) and rows[-1]["step"] >= AFTER
    return count


def lose_a_node(argv: Sequence[str], results: Path, log: Path) -> list[str]:
    """Do the campaign on two nodes, and remove one in the middle. Return a line for each error."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    lost, removed = cluster.add_node(num_cpus=1), False
    command = [sys.executable, "-m", "rmsexp.campaign", *argv, "--on", f"ray={cluster.address}"]
    try:
        with log.open("ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as campaign:
            while campaign.poll() is None:
                time.sleep(POLL_SECONDS)
                if not removed and training(results) == 2:
                    cluster.remove_node(lost, allow_graceful=False)
                    removed = True
                    print("a node is removed", flush=True)
    finally:
        cluster.shutdown()
    errors = [] if removed else ["no node was removed, because two runs never trained at the same time"]
    return errors + ([f"the campaign ended with status {campaign.returncode}"] if campaign.returncode else [])


def lose_and_compare(root: Path, words: Sequence[str] = ()) -> dict[str, Any]:
    """Do the campaign undisturbed, and on two nodes, below the folder ``root``.

    Return ``errors``, a line for each, and ``sessions``: the steps at which those of each run on two nodes began.
    """
    os.environ |= {"OMP_WAIT_POLICY": "passive", "RAY_USAGE_STATS_ENABLED": "0"}
    path, log = root / "configs" / "campaign" / f"{campaign_kills.NAME}.yaml", root / "log.txt"
    path.parent.mkdir(parents=True)
    runs = campaign_kills.CAMPAIGN["runs"] | {"schedule.steps": STEPS}  # type: ignore[operator]
    path.write_text(yaml.safe_dump(campaign_kills.CAMPAIGN | {"runs": runs}))
    folders = {name: root / name / "results" for name in ("undisturbed", "on two nodes")}
    argv = [campaign_kills.NAME, "--config-dir", str(root / "configs"), *words]
    with log.open("ab") as file:
        undisturbed = [sys.executable, "-m", "rmsexp.campaign", *argv, f"results={folders['undisturbed']}"]
        if status := subprocess.run(undisturbed, stdout=file, stderr=file, check=False).returncode:
            return {"errors": [f"the undisturbed campaign ended with status {status}; see {log}"], "sessions": {}}
    print("the undisturbed campaign has ended", flush=True)
    results = folders["on two nodes"]
    if errors := lose_a_node([*argv, f"results={results}"], results, log):
        return {"errors": [f"{error}; see {log}" for error in errors], "sessions": {}}
    expected, found = map(campaign_kills.content, folders.values())
    print(f"{len(expected['plan']['jobs'])} runs, {len(expected['verdicts'])} verdicts")
    sessions = campaign_kills.starts(results)
    continued = [] if any(len(steps) > 1 for steps in sessions.values()) else ["no run was continued"]
    errors = [*campaign_kills.sessions(results), *continued, *chaos.differences(expected, found)]
    return {"errors": errors, "sessions": sessions}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the campaign")
    add_option(parser, None)
    options = parser.parse_args()
    check = Check("ray_node_lost", options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-ray-"))
    found = lose_and_compare(root, options.words)
    print("\n".join(found["errors"]) or "all runs equal those of the undisturbed campaign")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    check.write({"nodes": 2, **found, "seconds": seconds})
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
