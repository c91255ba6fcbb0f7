"""Hold the updates of running statistics, so that no micro-batch of a step depends on the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


Updates = list[list[Any]]  # of a micro-batch, by module


class RunningStatistics:
    """The running statistics of a model. ``modules``: the modules that have some."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [module for module in model.modules() if isinstance(module, HoldsUpdates)]
        self._held: list[Updates] = []

    @contextmanager
    def held(self, active: bool) -> Iterator[None]:
        """Undo, at the end of the context, what it changes of the statistics. Without ``active`` do nothing."""
        if not active or not self.modules:
            yield
            return
        for module in self.modules:
            module.hold_updates()
        try:
            yield
        finally:
            self._held.append([module.release_updates() for module in self.modules])

    def release(self) -> list[Updates]:
        """Return the updates of each context of :meth:`held` since the last call."""
        released, self._held = self._held, []
        return released

    def update(self, released: Iterable[Updates]) -> None:
        """Update the statistics by what :meth:`release` returned, in order."""
        for updates in released:
            for module, updates_of_module in zip(self.modules, updates, strict=True):
                module.apply_updates(updates_of_module)
