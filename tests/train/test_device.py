"""How the device of a run is set up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rmsexp import config
from rmsexp.train.device import set_up_device


@pytest.fixture(autouse=True)
def settings_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch see a GPU, and restore what the set-up changes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for name in ("benchmark", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_on_a_gpu_operators_without_a_deterministic_algorithm_are_refused(deterministic: str) -> None:
    """With warn_only, the backward passes of attention would take algorithms whose results differ between runs."""
    device = set_up_device(config.job(["device=cuda", "threads=1", f"deterministic={deterministic}"]).config)
    assert device == torch.device("cuda")
    assert torch.are_deterministic_algorithms_enabled() == (deterministic == "true")
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.allow_tf32


def test_an_environment_that_prevents_determinism_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ValueError, match="CUBLAS_WORKSPACE_CONFIG unset or :4096:8 or :16:8; it is :0:0"):
        set_up_device(config.job(["device=cuda", "threads=1"]).config)
