"""The comparison of two commits: the device on which they train."""

from __future__ import annotations

import compare_commits
import pytest
import torch

from rmsexp import config


@pytest.mark.parametrize(
    ("overrides", "devices"),
    [
        ([], ("cpu", "cpu")),
        (["device=cpu"], ("cpu", "cpu")),
        (["device=cuda"], ("cuda", "cuda")),
        (["device=auto"], ("cpu", "cuda")),
    ],
)
def test_commits_are_compared_on_the_cpu_unless_a_device_is_named(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], devices: tuple[str, str]
) -> None:
    """``devices``: without a GPU, and with one."""
    job = config.job(compare_commits.with_device(["norm=rms", *overrides]))
    for has_gpu, device in zip((False, True), devices, strict=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert compare_commits.device_of(job) == torch.device(device)
