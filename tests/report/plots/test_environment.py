"""The user's settings of matplotlib do not change the figures of commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

IMPORTS = "import rmsexp.report.plots, matplotlib; print(matplotlib.rcParams['font.size'], matplotlib.get_backend())"


def test_commands_draw_without_the_style_of_the_user(tmp_path: Path) -> None:
    """``-m rmsexp.report`` is a command; what it prints here is of a process that it starts."""
    (tmp_path / "matplotlibrc").write_text("font.size: 31\n")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IMPORTS!r}], check=True)"
    command = f"import sys; sys.argv[0] = 'rmsexp'; import rmsexp; {child}"
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "MPLBACKEND": "svg"}
    words = [sys.executable, "-c", command]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("10.0 agg\n", 0), done.stderr
