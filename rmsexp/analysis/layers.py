"""What each norm saw during training, over depth and steps, from runs with ``monitor=true``."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rmsexp.records.frames import names
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Panel, legend, robust
from rmsexp.report.tables.markup import Table
from rmsexp.train.monitor import FILE, QUANTITIES

TITLES = {
    "rms": "RMS of the input",
    "mean_over_spread": "mean over spread of the input",
    "cosine": "|cosine| of input and ones",
    "saturated": "share of saturated tanh and erf",
    "gradient": "size of the gradient at the input",
    "gain_spread": "standard deviation of the gain",
}
CAPTION = (
    "By layer: at the last observation; layers in the order in which the model calls them; the mean over seeds.",
    "By step: the median over layers, with a band from the lowest to the highest layer.",
)


def read(run: Path) -> pd.DataFrame:
    """Return a run's file of :mod:`rmsexp.train.monitor`, with the columns ``series``, ``run`` and ``place``.

    ``place``: the number of the layer in the order of the calls, from 1. Raises: ValueError if there is no such file.
    """
    try:
        table = pd.read_csv(run / FILE, dtype={"layer": str} | dict.fromkeys(QUANTITIES, float))
        table["place"] = table.groupby("step").cumcount() + 1
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{run}: no {FILE} that can be read ({error}); train it with monitor=true") from None
    return table.assign(series=run.absolute().parent.name, run=str(run))


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each run's last observation."""
    return table[table["step"] == table.groupby("run")["step"].transform("max")]


def chart(title: str, table: pd.DataFrame) -> Chart:
    """Return the figure: two panels for each quantity that has values, over depth and over steps."""
    looks = style.looks(names.in_order(table["series"]))
    panels = []
    for quantity in (name for name in QUANTITIES if table[name].notna().any()):
        by_place, by_step = [], []
        for name, own in table.groupby("series", sort=False)[["run", "step", "place", quantity]]:
            series = str(name)
            last = _last(own).groupby("place")[quantity].mean().dropna()
            by_place.append(Mark("line", looks[series], [*last.index], [*last], series=series))
            steps = own.groupby(["step", "place"])[quantity].mean().groupby("step")
            over = steps.agg(["median", "min", "max"])
            middle, low, high = (over[how].to_numpy(float) for how in over)
            by_step.append(Mark("line", looks[series], over.index.to_numpy(float), middle, low, high, series=series))
        for axis, marks in ((Axis("layer"), by_place), (Axis("step"), by_step)):
            curves = [values for mark in marks for values in (mark.y, mark.low, mark.high) if len(values)]
            ends = [value for mark in marks for value in mark.y]
            panels.append(Panel(axis, robust(TITLES[quantity], curves, ends, may_be_log=True), marks))
    return Chart(title, CAPTION, panels, legend(panels), columns=4)


def analyse(runs: Sequence[Path], out: Path) -> list[Table]:
    """Write a figure for each setting of the runs, ``<out>/<task>-<setting>.png``, and return a table for each.

    The tables have means over layers and seeds at the last observation of each run. Raises: ValueError and OSError if a
    run cannot be read, or a figure cannot be written.
    """
    settings, tables = dict[tuple[str, str], list[pd.DataFrame]](), []
    for run in runs:
        table, (*_, task, setting, _, _) = read(run), run.absolute().parts
        settings.setdefault((task, setting), []).append(table)
    for (task, setting), read_tables in settings.items():
        table, path = pd.concat(read_tables), out / f"{task}-{setting}"
        out.mkdir(parents=True, exist_ok=True)
        title = f"{names.task_label(task)}, {names.setting_label(setting)}: what the norms see"
        canvas.save(chart(title, table), path, ["png"])
        print(f"written {path}.png")
        means = _last(table).groupby("series", sort=False)[list(QUANTITIES)].mean().reset_index()
        text = means.map(lambda value: f"{value:.3g}" if isinstance(value, float) else value).replace("nan", "")
        tables.append(Table(path.name, f"{title}, mean over layers at the last observation", means, text))
    return tables
