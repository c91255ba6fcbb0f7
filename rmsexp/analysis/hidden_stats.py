"""Table 5 of the paper: mean and standard deviation of the decoder's hidden-to-hidden map by target position."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from rmsexp.analysis.finding import Finding, captioned
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import Batch
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.report import paper
from rmsexp.report.plots import canvas, style
from rmsexp.report.tables.markup import Table
from rmsexp.system import readers
from rmsexp.tasks import rnnsearch
from rmsexp.train.checkpoint import CheckpointError
from rmsexp.train.step import autocast
from rmsexp.work import trained

POSITIONS = 4  # the first positions of the target, as in Table 5, which also has a row for all positions
MARKERS = "osD^v"  # matplotlib markers, one per run, because runs of one norm have the same colour
MAPPINGS = ("gates", "candidate", "both")
STATISTICS = {"mean": "mean", "std": "standard deviation"}  # our column -> its name in Table 5


def hidden_stats(model: RNNSearch, batches: Iterable[Batch]) -> pd.DataFrame:
    """Return statistics of ``N(U h)``, with gain and bias, in the decoder's first GRU under teacher forcing.

    Columns: ``mapping`` (gates, candidate, or both concatenated); ``position`` of the target token (1 to ``POSITIONS``,
    or "all"); ``vectors``, the number of vectors; ``mean`` and ``std``, the mean and standard deviation over the units
    of a vector, averaged over vectors. ``model`` must be in evaluation mode for the statistics of a trained model.
    """
    outputs: dict[str, list[torch.Tensor]] = {"gates": [], "candidate": []}
    gru, rows = model.first_gru, []
    fused, gru.fused = gru.fused, False  # one operator for all steps would not call the norms
    hooks = [
        site.norm.register_forward_hook(lambda _module, _inputs, output, store=store: store.append(output))
        for site, store in ((gru.gates_h, outputs["gates"]), (gru.candidate_h, outputs["candidate"]))
    ]
    try:
        for batch in batches:
            with torch.no_grad():
                model(batch)
            gates, candidate = (torch.stack(steps, 1) for steps in outputs.values())
            position = batch.target_mask.nonzero()[:, 1].cpu() + 1
            for mapping, values in zip(MAPPINGS, (gates, candidate, torch.cat([gates, candidate], -1)), strict=True):
                values = values[batch.target_mask].double().cpu()
                statistics = {"mean": values.mean(1).numpy(), "std": values.std(1, unbiased=False).numpy()}
                rows.append(pd.DataFrame({"mapping": mapping, "position": position.numpy(), **statistics}))
            for steps in outputs.values():
                steps.clear()
    finally:
        gru.fused = fused
        for hook in hooks:
            hook.remove()
    vectors = pd.concat(rows)
    first = vectors[vectors["position"] <= POSITIONS]
    table = pd.concat([first, vectors.assign(position="all")]).groupby(["mapping", "position"], sort=False)
    return table.agg(vectors=("mean", "size"), mean=("mean", "mean"), std=("std", "mean")).reset_index()


def analyse(runs: Sequence[Path]) -> Finding:
    """Return one figure of all runs, and a table for each run, whose CSV file goes to the run's folder.

    Raises: as :func:`tables_of`.
    """
    tables = tables_of(runs)
    return Finding(
        tables, {"hidden_stats": draw({run: table.numbers for run, table in zip(runs, tables, strict=True)})}
    )


def tables_of(runs: Sequence[Path]) -> list[Table]:
    """Return a table for each run.

    The statistics are of the run's best checkpoint, computed on the validation set.

    Raises: config.ConfigError if a folder is not a run of task=rnnsearch; data.DataError, ValueError and OSError if a
    run cannot be loaded.
    """
    device, tables = torch.device("cpu"), []
    for run in runs:
        try:
            task, model, step = trained.load(run, rnnsearch.Task, device, print)
        except CheckpointError as error:
            raise ValueError(str(error)) from None
        with autocast(task.config.precision, device):
            table = hidden_stats(model, task.held_out_batches(task.text.held_out["valid"]))
        title = f"{run}, the model of step {step}, on the validation set"
        text = table.map(lambda value: f"{round(value, 3) + 0.0:.3f}" if isinstance(value, float) else str(value))
        tables.append(Table(str(run.absolute() / "hidden_stats"), title, table, text))
    return tables


def published_table() -> pd.DataFrame:
    """Return the paper's Table 5, with columns ``norm``, ``position`` ("1" to "4", or "all"), ``mean``, ``std``."""
    rows = paper.numbers().query("table == 'Table 5'")
    parts = rows["metric"].str.extract(r"^(?P<statistic>.+), token position (?P<position>\w+)$")
    wide = rows.join(parts).assign(position=lambda table: table["position"].str.lower())
    wide = wide.pivot(index=["norm", "position"], columns="statistic", values="value").reset_index()
    return wide.rename(columns={name: column for column, name in STATISTICS.items()})


def draw(tables: Mapping[Path, pd.DataFrame]) -> Figure:
    """Draw a panel per statistic and mapping against position, with a line per run and the paper's line per norm.

    ``tables``: the result of :func:`hidden_stats` for each run folder.
    """
    caption = (
        "N(U h) with gain and bias in the decoder's first GRU: statistics over the units of a vector, averaged over "
        "vectors of the validation set. Dashed: the paper's Table 5, which does not state the mapping."
    )
    figure = captioned("The decoder's hidden-to-hidden map by target position (Table 5)", caption, 13.5, 6.4)
    grid = figure.subplots(len(STATISTICS), len(MAPPINGS), sharex=True, sharey="row")
    published = published_table()
    looks = style.looks([*published["norm"], *map(_series, tables)])
    for (statistic, mapping), axes in zip(product(STATISTICS, MAPPINGS), grid.flat, strict=True):
        for norm in names.in_order(published["norm"]):
            rows = published[published["norm"] == norm]
            look: dict[str, Any] = {"color": looks[norm].colour, "linestyle": style.PAPER, "marker": "x"}
            axes.plot(rows["position"], rows[statistic], label=f"{names.label(norm)} (paper)", linewidth=1.2, **look)
        for (run, table), marker in zip(tables.items(), cycle(MARKERS)):
            rows, series = table[table["mapping"] == mapping], _series(run)
            look = {"color": looks[series].colour, "linewidth": style.THICK, "marker": marker}
            label = textwrap.fill(f"{names.label(series)}, {'/'.join(run.absolute().parts[-3:])}", 34)
            axes.plot(rows["position"].astype(str), rows[statistic], markersize=5, label=label, **look)
        canvas.add_grid(axes)
    for axes, mapping in zip(grid[0], MAPPINGS, strict=True):
        axes.set_title(mapping)
    for axes, statistic in zip(grid[:, 0], STATISTICS.values(), strict=True):
        axes.set_ylabel(statistic)
    for axes in grid[-1]:
        axes.set_xlabel("target position")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8.5)
    return figure


def _series(run: Path) -> str:
    return str(readers.read_json(run / record.RUN).get("series"))
