"""Fixtures of tests of campaigns."""

from __future__ import annotations

import pytest

from rmsexp.campaign import question
from rmsexp.campaign.question import Question


@pytest.fixture
def quick_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the folders of runs by a formula. Composing a run to find its folder takes a tenth of a second."""

    def folder(asked: Question, final: bool, norm: str, rate: float) -> str:  # noqa: ARG001
        return f"order_embedding/demo+evaluation={'scored' if final else 'validation'}+optim.lr={rate:g}/{norm}"

    monkeypatch.setattr(question, "_series_folder", folder)
