"""BLEU and chrF of trained translation models on the same test sentences, with p-values of their differences.

sacreBLEU's paired bootstrap (Koehn 2004): both models are scored on the same 1,000 resamples of the test sentences.
The p-values are about these trained models; whether a norm is better over seeds is for a campaign to decide.
"""

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rmsexp.metrics import bleu
from rmsexp.report.tables.markup import Table
from rmsexp.system.files import read_regular
from rmsexp.system.readers import typed_of
from rmsexp.tasks.translation import TRANSLATIONS, Translations


def read(run: Path) -> Translations:
    """Return the test translations that a run keeps. Raises: ValueError if there are none that can be read."""
    try:
        content = json.loads(gzip.decompress(read_regular(run / TRANSLATIONS)))
        kept = typed_of(TRANSLATIONS, Translations, content)
        if not all(len(lines) == 2 and len(lines[0]) == len(lines[1]) > 0 for lines in kept.tests.values()):
            raise ValueError("references and translations do not match")
        return kept
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{run}: no {TRANSLATIONS} of a run of rnnsearch or transformer ({error})") from None


def analyse(runs: Sequence[Path]) -> list[Table]:
    """Return a table for each test set that all runs translated; its p-values compare each run with the first.

    Raises: ValueError if a run keeps no translations, or if the runs have no test set in common.
    """
    from sacrebleu.significance import PairedTest, Result

    kept = [read(run) for run in runs]
    labels, tables = ["/".join(run.absolute().parts[-4:]) for run in runs], []
    if len({*labels}) < len(labels):  # runs of several folders of results
        labels = list(map(str, runs))
    for split, (references, _) in kept[0].tests.items():
        found = [each.tests[split][1] for each in kept if split in each.tests and each.tests[split][0] == references]
        if len(found) < len(kept):
            continue
        named: list[tuple[str, Sequence[str]]] = [*zip(labels, found, strict=True)]
        metrics = dict(zip(("BLEU", "chrF2"), bleu.metrics(references, kept[0].target), strict=True))
        _, scores = PairedTest(named, metrics, None, test_type="bs")()
        rows = [
            (name, metric, of.score, of.ci, of.p_value)
            for metric, results in scores.items()
            for name, of in zip(labels, results, strict=True)
            if isinstance(of, Result)
        ]
        numbers = pd.DataFrame(rows, columns=["run", "metric", "score", "half_width_95", "p_value"])
        first = numbers.groupby("metric")["score"].transform("first")
        # of equal translations, sacreBLEU counts no resample as extreme, and so reports its smallest p-value
        numbers.loc[numbers["p_value"].notna() & (numbers["score"] == first), "p_value"] = 1.0
        readable = numbers.assign(
            score=[f"{score:.2f} ± {half:.2f}" for score, half in numbers[["score", "half_width_95"]].to_numpy()],
            p_value=["" if pd.isna(p) else f"{p:.3f}" for p in numbers["p_value"]],
        ).drop(columns="half_width_95")
        title = (
            f"{split}, {len(references):,} sentences; p_value: of the difference from {labels[0]} (paired bootstrap)"
        )
        tables.append(Table(f"bleu-{split}", title, numbers, readable))
    if not tables:
        raise ValueError("these runs have no test set with the same references in common")
    return tables
