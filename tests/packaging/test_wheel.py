"""The wheel works outside the repository: it has all files that a run and a report need."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rmsexp.norms import kernels

ROOT = Path(__file__).parents[2]
RUN = ("-m", "task=order_embedding", "norm.impl=fused", "max_steps=2", "model.hidden=16", "eval_every=2", "threads=1")
COMMANDS = """
import json, sys
from rmsexp.__main__ import main
for words in json.loads(sys.argv[1]):
    assert not main(words), words
"""  # in one process, because the imports take most of the time

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without network (hatchling is a dev package), and return the folder where it is unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    (wheel,) = folder.glob("rmsexp-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def python(site: Path, *words: str) -> str:
    """Run Python outside the repository, with the unpacked wheel first on its path, and return the output."""
    process = subprocess.run(
        [sys.executable, *words],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_every_file_of_the_package_is_in_the_wheel(site: Path) -> None:
    folders = {ROOT / "rmsexp": "rmsexp", ROOT / "configs": "rmsexp/configs"}
    expected = {
        f"{target}/{path.relative_to(folder).as_posix()}"
        for folder, target in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    (wheel,) = site.parent.glob("rmsexp-*.whl")  # not the unpacked folder: an import writes bytecode into it
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("rmsexp/")}
    assert packed == expected


def test_metadata_and_command_are_in_the_wheel_from_which_the_package_is_imported(site: Path) -> None:
    assert Path(python(site, "-c", "import rmsexp; print(rmsexp.__file__)").strip()) == site / "rmsexp/__init__.py"
    (folder,) = site.glob("rmsexp-*.dist-info")
    metadata = (folder / "METADATA").read_text()
    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "rmsexp = rmsexp.__main__:main" in (folder / "entry_points.txt").read_text().splitlines()


@pytest.mark.minutes
def test_help_a_fused_run_and_the_report_work(site: Path, tmp_path: Path) -> None:
    words = [["--help"], [*RUN, f"results={tmp_path}", f"data.root={tmp_path}"], ["report", str(tmp_path)]]
    output = python(site, "-c", COMMANDS, json.dumps(words))
    assert "usage: " in output
    (status,) = (json.loads(path.read_text()) for path in tmp_path.rglob("status.json"))
    assert (status["status"], status["step"]) == ("finished", 2)
    (run,) = (json.loads(path.read_text()) for path in tmp_path.rglob("run.json"))
    assert run["impl"] == ("fused" if kernels.load() else "eager")
    assert "report.html" in output
    assert (tmp_path / "report/report.html").exists()
