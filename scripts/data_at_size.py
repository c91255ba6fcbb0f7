"""Measure time and memory of preparing parallel text at size.

    python scripts/data_at_size.py --pairs 10000 100000 1000000 4500000

For each number of pairs, scripts/parallel_corpus.py writes a corpus with the lengths and the vocabulary of WMT14's
training text. A process then prepares it for the Transformer up to its first batch, and another does so again from
what is stored.

Each size and kind of subwords has a record of its own (check_record.py). The corpora and all stored results are
removed.

Memory is the largest proportional set size (PSS) of the process and those that it starts, taken four times a second.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import parallel_corpus
import psutil
from check_record import Check, add_option, run

from rmsexp.system.command_line import inform
from rmsexp.system.machine_lock import measuring

NAME = "data_at_size"
KINDS = ("sentencepiece", "moses_bpe")
VOCABULARY = 32_000  # as at scale=paper; smaller texts have half as many subwords as pairs
POLL_SECONDS = 0.25
PREPARE = """
import sys
import torch
from rmsexp import config, tasks
task = tasks.make(config.job(sys.argv[1:]), torch.device("cpu"))
task.prepare(lambda line: print(line, file=sys.stderr, flush=True))
for batch in task.batches(0):
    pass
"""


def watched(what: str, command: Sequence[str], **options: Any) -> dict[str, float]:
    """Run a command; return ``seconds``, and of all its processes ``processor`` seconds and peak PSS, ``mebibytes``.

    ``what``: what the command does, for messages. ``options``: of :class:`subprocess.Popen`. Raises: SystemExit if the
    command fails.
    """
    began, peak, used = time.perf_counter(), 0, dict[int, float]()
    with subprocess.Popen(command, **options) as process:
        while process.poll() is None:
            total = 0
            for member in family(process.pid):
                try:
                    total += member.memory_full_info().pss
                    used[member.pid] = sum(member.cpu_times()[:2])
                except psutil.Error:  # it has ended meanwhile
                    continue
            peak = max(peak, total)
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    if process.returncode:
        sys.exit(f"{what} ended with status {process.returncode}")
    return {"seconds": time.perf_counter() - began, "processor": sum(used.values()), "mebibytes": peak / 2**20}


def family(pid: int) -> list[psutil.Process]:
    """Return a process and those that it has started, directly or not; an empty list if it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def measure_text(pairs: int, kind: str, folder: Path, results: Path) -> None:
    """Write the record of preparing the training text of a corpus, and again from what is stored."""
    vocabulary = min(VOCABULARY, pairs // 2)
    identity = {"subwords": kind, "pairs": pairs, "vocabulary": vocabulary}
    corpus, root = folder / f"{pairs}", folder / f"{pairs}-{kind}"
    if not corpus.exists():
        inform(f"writing a corpus of {pairs:,} pairs")
        parallel_corpus.write(corpus.with_suffix(".tmp"), pairs)
        corpus.with_suffix(".tmp").rename(corpus)
    splits = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    chosen = [f"data.subwords={kind}", f"data.vocabulary={vocabulary}", f"data.root={root}"]
    chosen += ["data.threshold=0"] if kind == "sentencepiece" else []
    words = ["task=transformer", "scale=paper", "data.name=files", "data.tests=[test]", *splits, *chosen]
    shutil.rmtree(root, ignore_errors=True)  # what a killed process has stored would be missing from the measurement
    check = Check(NAME, results)
    with measuring(inform):
        prepared, cached = (watched("preparing", [sys.executable, "-c", PREPARE, *words]) for _ in range(2))
    inform(f"{kind}, {pairs:,} pairs: prepared {prepared}, from what is stored {cached}")
    check.write(identity | {"prepared": prepared, "cached": cached})
    shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="*", default=[10_000, 100_000], help="sizes (10000 100000)")
    parser.add_argument("--subwords", nargs="+", default=KINDS, choices=KINDS, help="kinds of subwords (both)")
    place = Path(tempfile.gettempdir(), NAME)
    parser.add_argument("--folder", type=Path, default=place, help=f"folder for corpora and stored results ({place})")
    add_option(parser)
    arguments = parser.parse_args()
    results = arguments.results.expanduser()
    for pairs in arguments.pairs:
        for kind in arguments.subwords:
            measure_text(pairs, kind, arguments.folder, results)
        shutil.rmtree(arguments.folder / f"{pairs}", ignore_errors=True)


if __name__ == "__main__":
    run(main)
