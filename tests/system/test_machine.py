"""What tells machines of the same name apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmsexp.system import machine

CPUINFO = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1
flags		: fpu sse2

processor	: 1
model		: 99
"""
CACHES = [("1", "Data", "32K", "0"), ("2", "Unified", "1024K", "0"), ("3", "Unified", "32768K", "0-1")]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that replaces the root of the file system, with the files of a machine."""
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    for index, values in enumerate(CACHES):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(f"{value}\n")
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for function in (machine.processor, machine.caches, machine._cpuinfo):
        function.cache_clear()


@pytest.mark.usefixtures("root")
def test_the_identity_has_what_the_system_reports() -> None:
    identity = machine.identity("AVX2")
    assert len(identity.pop("id")) == 12
    caches = ["L1 Data 32K shared by 0", "L2 Unified 1024K shared by 0", "L3 Unified 32768K shared by 0-1"]
    processor = {"name": "AMD EPYC", "vendor": "AuthenticAMD", "family": "25", "model": "17", "stepping": "1"}
    assert identity == processor | {"instructions": "AVX2", "caches": caches, "cores": 2}
    assert machine.largest_cache() == 32 << 20


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("proc/cpuinfo", "model		: 17", "model		: 1"),
        ("proc/cpuinfo", "stepping	: 1", "stepping	: 2"),
        ("proc/cpuinfo", "family	: 25", "family	: 26"),
        ("sys/devices/system/cpu/cpu0/cache/index2/size", "32768K", "16384K"),
    ],
)
def test_each_fact_changes_the_id(root: Path, file: str, before: str, after: str) -> None:
    first = machine.identity("AVX2")
    assert machine.identity("AVX2")["id"] == first["id"]
    assert machine.identity("AVX512")["id"] != first["id"]
    text = (root / file).read_text()
    assert before in text
    (root / file).write_text(text.replace(before, after))
    forget()
    assert machine.identity("AVX2")["id"] != first["id"]
    assert machine.identity("AVX2")["name"] == first["name"]
