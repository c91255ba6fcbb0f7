"""Determine which code, versions and machine compute a run, for its record."""

import hashlib
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rmsexp.config import Job, classes, digest
from rmsexp.config.schema import flatten
from rmsexp.records import record
from rmsexp.system import machine, process
from rmsexp.system.clock import now

PACKAGE = Path(__file__).parent.parent
LIBRARIES = ("rmsexp", "torch", "torchvision", "numpy", "hydra-core")
SOURCES = (".py", ".cpp", ".h")  # suffixes of source files
# What a result depends on, for git: the package, and these paths of its checkout. Results, documents, tests and
# notebooks may change while runs go on.
DECISIVE_PATHS = (".", *(f":/{path}" for path in ("configs", "scripts", "pyproject.toml", "constraints.txt")))
# Keys of a session whose change may change results or times.
DECISIVE = ("code", "versions", "device", "device_type", "threads")


def session(device: torch.device, from_step: int) -> dict[str, Any]:
    """Return this process's entry of ``sessions`` in ``run.json``. ``from_step``: the step at which it begins."""
    return {
        "started": now(),
        "from_step": from_step,
        "git": git(),
        "code": code(),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES},
        "device": machine.processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        "machine": machine.identity(torch.backends.cpu.get_cpu_capability()),
        "slurm_job": process.slurm_job(),
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two sessions differ, so that their results or times may differ.

    A key of ``DECISIVE`` that ``before`` lacks counts as different. ``impl``, the implementation of the norms, and
    ``machine`` are not compared if ``before`` lacks them. A missing ``world_size``, the number of processes, stands for
    1, and a missing ``own_code``, the digest of the user's modules, for "".
    """
    lacked = {"impl": after.get("impl"), "world_size": 1, record.OWN_CODE: ""}
    changes = [key for key in DECISIVE if before.get(key) != after[key]]
    changes += [key for key, value in lacked.items() if before.get(key, value) != after.get(key, value)]
    is_other = "machine" in before and before["machine"]["id"] != after["machine"]["id"]
    return changes + ["machine"] * is_other


@cache
def machine_id() -> str:
    """Return the ``id`` of :func:`rmsexp.system.machine.identity`, with the vector instructions that torch uses."""
    return str(machine.identity(torch.backends.cpu.get_cpu_capability())["id"])


@cache
def code() -> str:
    """Return a digest of the package's sources, which identifies the code whether or not it is committed."""
    paths = (path for path in PACKAGE.rglob("*") if path.suffix in SOURCES)
    return record.digest_of_sources({path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in paths})


def own_sources(resolved: Mapping[str, Any], edited: bool = False) -> dict[str, bytes]:
    """Return the sources of the user's own modules whose classes a config names, and of those that they import.

    A class is named under ``_target_`` or, for :class:`rmsexp.norms.ModuleNorm`, as the option ``module`` of a norm,
    also of one inside by_role. Modules of ``LIBRARIES``, whose versions a session has, are left out. The sources are
    those that this process has imported; with ``edited``, they are as the files are now.
    """
    words = "\n".join(f"{key}={value}" for key, value in flatten(resolved).items())
    paths = re.findall(r"^(?:.*_target_|norm\.(?:.*\+)?module)=([\w.]+)", words, re.MULTILINE)
    named = {path.rpartition(".")[0] for path in paths}  # of "my_norm.MyNorm", "my_norm"
    sources: dict[str, bytes] = {}
    for name in named & sys.modules.keys():
        if name.partition(".")[0] not in LIBRARIES:
            stored = None if edited else classes.sources.get(sys.modules[name])
            sources |= classes.sources_of(name) if stored is None else stored
    return sources


def own_modules(resolved: Mapping[str, Any], edited: bool = False) -> str:
    """Return the digest of :func:`own_sources`, or "" if there are none."""
    return record.digest_of_sources(own_sources(resolved, edited))


@cache
def git() -> dict[str, Any]:
    """Return the commit, and whether code, configs, scripts or locked versions have uncommitted changes (``dirty``).

    Both are None if git does not track the package.
    """

    def output(*words: str) -> str | None:
        try:
            # without the optional lock, which would let a commit fail that somebody makes meanwhile
            command = ["git", "--no-optional-locks", "-C", str(PACKAGE), *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # an installed copy may be inside the checkout of another project, which does not track it
    tracked = output("ls-files", "--error-unmatch", "task.py")
    if tracked is None:
        return {"commit": None, "dirty": None}
    changes = output("status", "--porcelain", "--", *DECISIVE_PATHS)
    return {"commit": output("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def workload(job: Job) -> str:
    """Return a digest of what a job trains: of its config, and of the user's own modules that the config names.

    Timings of one version of the package's code (:func:`code`) with the same workload may be pooled.
    """
    return hashlib.sha256(f"{digest(job.resolved)} {own_modules(job.resolved)}".encode()).hexdigest()[:16]
