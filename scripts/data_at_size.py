"""Measure the preparation of parallel text of growing size: time, memory, and the start of a run from stored results.

    python scripts/data_at_size.py --pairs 10000 100000 1000000 4500000 --results results/reference/computed

For each number of pairs, scripts/parallel_corpus.py writes a corpus with the lengths and the vocabulary of WMT14's
training text. A process then prepares it for the Transformer up to its first batch, and another does so again from what
is stored. Each size and kind of subwords has a record of its own (check_record.py); the same command goes on after the
last one, and a preparation that was killed goes on where it was. The corpora and all stored results are removed.

Memory is the proportional set size (PSS), summed over the process and those that it starts, every quarter of a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import parallel_corpus
import psutil
from check_record import FILE, Check, add_option, report

NAME = "data_at_size"
KINDS = ("sentencepiece", "moses_bpe")
VOCABULARY = 32_000  # as at scale=paper; smaller texts have half as many subwords as pairs
POLL_SECONDS = 0.25
CODE = """
import sys
import torch
from rmsexp import config, tasks
task = tasks.make(config.job(sys.argv[1:]), torch.device("cpu"))
task.prepare(lambda line: print(line, file=sys.stderr, flush=True))
for batch in task.batches(0):
    pass
"""


def watched(command: list[str]) -> dict[str, float]:
    """Run a command; return its seconds, the processor seconds, and the largest PSS in MiB, of all its processes.

    Raises: SystemExit if it fails.
    """
    began, peak, used = time.perf_counter(), 0, dict[int, float]()
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            total = 0
            for member in family(process.pid):
                try:
                    total += member.memory_full_info().pss
                    used[member.pid] = sum(member.cpu_times()[:2])
                except psutil.Error:  # it has ended meanwhile
                    continue
            peak = max(peak, total)
            time.sleep(POLL_SECONDS)
    if process.returncode:
        sys.exit(f"the preparation ended with status {process.returncode}")
    return {"seconds": time.perf_counter() - began, "processor": sum(used.values()), "mebibytes": peak / 2**20}


def family(pid: int) -> list[psutil.Process]:
    """Return a process and those that it has started, directly or not."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def is_measured(results: Path, identity: dict[str, Any]) -> bool:
    records = (json.loads(path.read_text())["results"] for path in results.glob(f"checks/{NAME}*/{FILE}"))
    return any(identity.items() <= record.items() for record in records)


def measure(kind: str, pairs: int, corpus: Path, root: Path) -> dict[str, Any]:
    """Prepare the training text of a corpus, and again from what is stored."""
    splits = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    chosen = [f"data.subwords={kind}", f"data.vocabulary={min(VOCABULARY, pairs // 2)}"]
    words = ["task=transformer", "scale=paper", "data.name=files", "data.tests=[test]", *splits, *chosen]
    words += [f"data.root={root}"] + (["data.threshold=0"] if kind == "sentencepiece" else [])
    command = [sys.executable, "-c", CODE, *words]
    prepared, cached = watched(command), watched(command)
    tokens = sum(path.stat().st_size // 4 for path in root.glob("translation/*/*_tokens.npy"))
    return {"tokens": tokens, "prepared": prepared, "cached": cached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000], help="sizes (10000 100000)")
    parser.add_argument("--subwords", nargs="+", default=KINDS, choices=KINDS, help="kinds of subwords (both)")
    place = Path(tempfile.gettempdir(), NAME)
    parser.add_argument("--folder", type=Path, default=place, help=f"folder for corpora and stored results ({place})")
    add_option(parser)
    arguments = parser.parse_args()
    for pairs in arguments.pairs:
        corpus = arguments.folder / f"{pairs}"
        for kind in arguments.subwords:
            identity = {"subwords": kind, "pairs": pairs}
            if is_measured(arguments.results, identity):
                report(f"{kind}, {pairs:,} pairs: there is a record already")
                continue
            if not corpus.exists():
                report(f"writing a corpus of {pairs:,} pairs")
                parallel_corpus.write(corpus.with_suffix(".tmp"), pairs)
                corpus.with_suffix(".tmp").rename(corpus)
            check, root = Check(NAME, arguments.results), arguments.folder / f"{pairs}-{kind}"
            with check.measuring():
                found = measure(kind, pairs, corpus, root)
            report(f"{kind}, {pairs:,} pairs: {found}")
            check.write(identity | found)
            shutil.rmtree(root)
        shutil.rmtree(corpus, ignore_errors=True)


if __name__ == "__main__":
    main()
