"""Run ``python -m rmsexp.analysis`` in the process of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rmsexp.commands.analysis import main


def analysed(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Run the command with these arguments, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["analysis", *map(str, words)])
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)
