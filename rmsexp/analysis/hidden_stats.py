"""Table 5 of the paper: mean and standard deviation of the decoder's hidden-to-hidden map by target position."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch

from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import Batch
from rmsexp.report.tables.markup import Table
from rmsexp.tasks import rnnsearch
from rmsexp.train.step import autocast
from rmsexp.work import trained

POSITIONS = 4  # the first positions of the target, as in Table 5, which also has a row for all positions


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
            mappings = {"gates": gates, "candidate": candidate, "both": torch.cat([gates, candidate], -1)}
            for mapping, values in mappings.items():
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


def analyse(runs: Sequence[Path]) -> list[Table]:
    """Return a table for each run, whose CSV file goes to the run's folder.

    The statistics are of the run's best checkpoint, computed on the validation set.

    Raises: config.ConfigError if a folder is not a run of task=rnnsearch; CheckpointError, data.DataError, ValueError
    and OSError if a run cannot be loaded.
    """
    device, tables = torch.device("cpu"), []
    for run in runs:
        task, model, step = trained.load(run, rnnsearch.Task, device, print)
        with autocast(task.config.precision, device):
            table = hidden_stats(model, task.held_out_batches(task.text.held_out["valid"]))
        title = f"{run}, the model of step {step}, on the validation set"
        text = table.map(lambda value: f"{round(value, 3) + 0.0:.3f}" if isinstance(value, float) else str(value))
        tables.append(Table(str(run.absolute() / "hidden_stats"), title, table, text))
    return tables
