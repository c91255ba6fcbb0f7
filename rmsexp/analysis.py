"""``python -m rmsexp.analysis hidden_stats RUN …``: what the paper looks at inside a trained model.

hidden_stats: mean and standard deviation of the decoder's hidden-to-hidden mapping by target position (Table 5), of
runs of task=rnnsearch; written to ``hidden_stats.csv`` in each run's folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from rmsexp.models.rnnsearch import RNNSearch
    from rmsexp.models.translation import Batch

POSITIONS = 4  # of the target, as in Table 5; the last row is over all positions


def hidden_stats(model: RNNSearch, batches: Iterable[Batch]) -> pd.DataFrame:
    """Statistics of ``N(U h)``, gain and bias included, of the decoder's first GRU, with the true words as its input.

    Columns: ``mapping`` (gates, candidate, or both side by side), ``position`` (from 1, or "all"), ``vectors``, and
    ``mean`` and ``std``: mean and standard deviation over the units of a vector, averaged over the vectors.
    """
    import pandas as pd
    import torch

    seen: dict[str, list[torch.Tensor]] = {"gates": [], "candidate": []}
    gru, rows = model.first_gru, []
    hooks = [
        site.norm.register_forward_hook(lambda _module, _inputs, output, store=store: store.append(output))
        for site, store in ((gru.gates_h, seen["gates"]), (gru.candidate_h, seen["candidate"]))
    ]
    try:
        for batch in batches:
            with torch.no_grad():
                model(batch)
            gates, candidate = (torch.stack(outputs, 1) for outputs in seen.values())
            real = batch.target_mask.nonzero()[:, 1].cpu() + 1
            for mapping, values in (
                ("gates", gates),
                ("candidate", candidate),
                ("both", torch.cat([gates, candidate], -1)),
            ):
                vectors = values[batch.target_mask].double().cpu()
                of_vectors = {"mean": vectors.mean(1).numpy(), "std": vectors.std(1, unbiased=False).numpy()}
                rows.append(pd.DataFrame({"mapping": mapping, "position": real.numpy(), **of_vectors}))
            for outputs in seen.values():
                outputs.clear()
    finally:
        for hook in hooks:
            hook.remove()
    every = pd.concat(rows)
    first = every[every["position"] <= POSITIONS]
    table = pd.concat([first, every.assign(position="all")]).groupby(["mapping", "position"], sort=False)
    return table.agg(vectors=("mean", "size"), mean=("mean", "mean"), std=("std", "mean")).reset_index()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rmsexp.analysis", description=__doc__)
    parser.add_argument("analysis", choices=("hidden_stats",))
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    arguments = parser.parse_args()

    import torch

    from rmsexp import config, record, trained
    from rmsexp.data import DataError
    from rmsexp.tasks import rnnsearch
    from rmsexp.train.checkpoint import CheckpointError
    from rmsexp.train.loop import autocast

    device = torch.device("cpu")
    for run in arguments.runs:
        try:
            task, model, step = trained.load(run, rnnsearch.Task, device, print)
            with autocast(task.config.precision, device):
                table = hidden_stats(model, task.held_out_batches("valid"))
            record.write_atomic(run / "hidden_stats.csv", table.to_csv(index=False))
        except (config.ConfigError, CheckpointError, DataError, ValueError, OSError) as error:
            print(f"rmsexp: {error}", file=sys.stderr)
            return 2 if isinstance(error, config.ConfigError) else 1
        print(f"{run}, the model of step {step}, on the validation set\n{table.round(3).to_string(index=False)}")
        print(f"written {run / 'hidden_stats.csv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
