"""What a person sees of a run while it goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rmsexp.record import Row


class ProgressDisplay:
    """Shows step, loss, rate and the time left."""

    def __init__(self, label: str, steps: int) -> None:
        self._label, self._steps = label, steps
        self._console = Console(file=sys.stderr)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            )
            self._bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=self._console)
            self._task = self._bar.add_task(label, total=steps, text="")
            self._bar.start()

    def update(self, row: Row, steps_per_second: float) -> None:
        """Shows a training row."""
        step, loss = row["step"], row["loss"]
        left = (self._steps - step) / steps_per_second if steps_per_second else 0.0
        shown = "not finite" if loss is None else f"{loss:.4f}"
        text = f"loss {shown}  {steps_per_second:.1f} steps/s  {_duration(left)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        else:
            self.say(f"{self._label}  step {step}/{self._steps}  {text}")

    def evaluated(self, row: Row) -> None:
        """Shows an evaluation row."""
        numbers = ", ".join(f"{key} {row[key]:.4f}" for key in row if key not in _NOT_SHOWN and row[key] is not None)
        self.say(f"{self._label}  step {row['step']}/{self._steps}  {row['split']}: {numbers}")

    def say(self, text: str) -> None:
        """Writes one line above the bar."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


_NOT_SHOWN = ("step", "epoch", "examples", "split", "seconds")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
