"""Hold the updates of running statistics, so that no micro-batch of a step depends on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class HoldsUpdates(Protocol):
    """A module with running statistics, such as :class:`rmsexp.norms.batch.BatchNorm`."""

    def hold_updates(self) -> None:
        """Hold the updates of the running statistics from now on."""

    def release_updates(self) -> list[Any]:
        """Set the running statistics to those at :meth:`hold_updates`, and return the updates since then, in order."""

    def apply_updates(self, updates: Sequence[Any]) -> None:
        """Apply updates that :meth:`release_updates` returned."""


class RunningStatistics:
    """The running statistics of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if isinstance(module, HoldsUpdates)]
        self._updates: list[list[list[Any]]] = []  # by micro-batch and module

    @contextmanager
    def held(self, active: bool) -> Iterator[None]:
        """Undo, at the end of the context, what it changes of the statistics. Without ``active`` do nothing."""
        if not active:
            yield
            return
        for module in self._modules:
            module.hold_updates()
        try:
            yield
        finally:
            self._updates.append([module.release_updates() for module in self._modules])

    def update(self) -> None:
        """Update the statistics by the micro-batches that were held since the last call, in order."""
        for updates in self._updates:
            for module, updates_of_module in zip(self._modules, updates, strict=True):
                module.apply_updates(updates_of_module)
        self._updates.clear()
