"""The user's settings of matplotlib neither stop the writing of figures nor change them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = "import rmsexp.report.plots, matplotlib; print(matplotlib.rcParams['font.size'], matplotlib.get_backend())"
MODULES = ("rmsexp.report", "rmsexp.analysis.finding", "rmsexp.report.page.colours", "rmsexp.analysis.item_kinds")


def output(*words: str, cwd: Path, **environment: str) -> str:
    """Return what a Python process prints that must not fail. The package is found from any folder."""
    root = str(Path(__file__).parents[3])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "MATPLOTLIB"))}
    variables |= {"PYTHONPATH": root} | environment
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backend_that_is_not_installed_stops_no_import(tmp_path: Path) -> None:
    imports = "; ".join(f"import {module}" for module in MODULES)
    shown = output("-c", f"{imports}; print('imported')", cwd=tmp_path, MPLBACKEND="module://no.such_module")
    assert shown == "imported\n"


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_commands_draw_without_the_style_of_the_user(folder: str, tmp_path: Path) -> None:
    """``-m rmsexp.report`` is a command; what it prints here is of a process that it starts."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "matplotlibrc").write_text("font.size: 31\n")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IMPORTS!r}], check=True)"
    command = f"import sys; sys.argv[0] = 'rmsexp'; import rmsexp; {child}"
    printed = output(
        "-c", command, cwd=tmp_path / folder, MPLBACKEND="svg", MATPLOTLIBRC=str(tmp_path / "matplotlibrc")
    )
    assert printed == "10.0 agg\n"
