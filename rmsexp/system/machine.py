"""Tell machines apart whose processors have the same name. This module imports only the standard library.

Cloud machines often have only a marketing name, such as "AMD EPYC", which several generations of processors share.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# Keys of /proc/cpuinfo, on x86 and on ARM, in order of preference.
FIELDS = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}


def identity(instructions: str) -> dict[str, Any]:
    """Return name, vendor, family, model, stepping, instructions, caches, cores and id.

    ``instructions``: the set of vector instructions that torch uses. ``caches``: see :func:`caches`. ``cores``: the
    number of the machine's logical cores. ``id``: a digest of the others. What the system does not report is None.
    """
    fields = _cpuinfo()
    facts: dict[str, Any] = {"name": processor()}
    for fact, keys in FIELDS.items():
        facts[fact] = next((fields[key] for key in keys if key in fields), None)
    facts |= {"instructions": instructions, "caches": caches(), "cores": os.cpu_count()}
    return facts | {"id": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]}


def of_session(session: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the identity of the hardware on which a session of a record ran, and a readable name.

    On a CPU, these are the ``id`` and ``name`` of the machine (:func:`identity`), or in older records the processor's
    name twice. On a GPU, the name is the GPU's, and the identity consists of the machine's ``id`` and this name.
    """
    machine, device = session.get("machine") or {}, session.get("device")
    if session.get("device_type", "cpu") != "cpu":
        return (f"{machine['id']}, {device}" if machine else device), device
    return machine.get("id") or device, machine.get("name") or device


@cache
def processor() -> str:
    """Return the name of the processor, for people."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@cache
def caches() -> list[str] | None:
    """Return the caches of the first core, such as "L3 Unified 32768K shared by 0-1"; None if they are not known."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            names = ("level", "type", "size", "shared_cpu_list")
            level, kind, size, shared = ((folder / name).read_text().strip() for name in names)
        except OSError:
            continue
        found.append(f"L{level} {kind} {size} shared by {shared}")
    return found or None


def largest_cache() -> int | None:
    """Return the size of the largest cache in bytes, or None if it is not known."""
    sizes = [word for cache in caches() or [] for word in cache.split() if word[:-1].isdigit() and word.endswith("K")]
    return max((int(size[:-1]) << 10 for size in sizes), default=None)


@cache
def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    lines = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in lines}
