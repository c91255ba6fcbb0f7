"""Give damaged files to the readers of runs and of data sets, and report what they do not refuse well.

    python scripts/fuzz.py [--seconds 600] [--reader NAME] [--seed 0]
    python scripts/fuzz.py --reader NAME --seed 0 --number 17    # read one input again, with its traceback

An input is refused well if the reader raises one of its documented exceptions, or the command ends with a documented
exit status, with a message of at most two lines and 300 characters. Findings are tracebacks, crashes, inputs that take
over 5 seconds of processor time or 1 GiB of memory, longer messages, and changes that a digest must show but that alter
the result silently. Inputs follow from seed, reader and number. Each finding is stored as a folder with its files.
With --results the table is written to a record, too. Ctrl-C ends the inputs, and the table has those that were read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve a GiB of addresses at once

from check_record import Check, add_option
from fuzzing import hostile, workers
from fuzzing.workers import FAULTS, VERDICTS, Reader, Result

STORED = 3  # number of inputs that are stored for each kind of finding of a reader
ROUND_SECONDS = 20.0  # longest time for one reader before the next one gets its turn


@dataclass
class Tally:
    """What one reader did with its inputs: the number of each verdict, and the results that are findings."""

    reader: Reader
    verdicts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[Result]] = field(default_factory=dict)
    next: int = 0
    slowest: float = 0.0
    seconds: float = 0.0  # processor time of all inputs

    def add(self, result: Result) -> None:
        self.next = result.number + 1
        self.verdicts[result.verdict] += 1
        self.slowest = max(self.slowest, result.seconds)
        self.seconds += result.seconds
        if result.verdict in FAULTS:
            self.findings.setdefault(result.kind, []).append(result)


def readers() -> tuple[Reader, ...]:
    from fuzzing import datasets, runs

    return runs.READERS + datasets.READERS


def choose(name: str | None) -> list[Reader]:
    """Return the reader with this name, or else those whose names contain it; without a name, all readers."""
    known = readers()
    exact = [reader for reader in known if reader.name == name]
    return exact or [reader for reader in known if not name or name in reader.name]


def fuzz(tallies: Sequence[Tally], seed: int, seconds: float, inputs: int, out: Path) -> None:
    """Give inputs to the reader of each tally until all have had their share of ``seconds``, or ``inputs`` each.

    Prints a line for each new kind of finding, and stores its first inputs in ``out``.
    """
    start = time.monotonic()
    shares = {tally.reader: 1 if tally.reader.weight == 1 else 3 for tally in tallies}
    rounds = max(1, round(seconds / len(tallies) / ROUND_SECONDS))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a file system in memory, which is faster
    with tempfile.TemporaryDirectory(prefix="rmsexp-fuzz-", dir=memory) as folder:
        for _ in range(rounds):
            for tally in tallies:
                reader = tally.reader
                least = len(hostile.FINDINGS.get(reader.name, []))
                left = max(-(-inputs // reader.weight), least) - tally.next
                if left <= 0:
                    continue
                part = seconds * shares[reader] / sum(shares.values()) / rounds
                for result in workers.results(reader, seed, tally.next, left, part, Path(folder)):
                    tally.add(result)
                    _store(tally, seed, result, out, Path(folder))
                _report_progress(time.monotonic() - start, tallies, tally)


def _report_progress(seconds: float, tallies: Sequence[Tally], last: Tally) -> None:
    inputs = sum(tally.verdicts.total() for tally in tallies)
    mean = 1000 * last.seconds / max(1, last.verdicts.total())
    print(f"{seconds:6.0f} s  {inputs:8,} inputs; {last.reader.name}: {mean:.1f} ms per input", file=sys.stderr)


def _store(tally: Tally, seed: int, result: Result, out: Path, folder: Path) -> None:
    """Store the input of a finding, if it is one of the first of its kind, and print a line about it."""
    reader = tally.reader
    if result.verdict in FAULTS and len(tally.findings[result.kind]) <= STORED:
        place = out / f"{reader.name.replace(' ', '-')}-{result.number}"
        workers.store(reader, seed, result.number, folder, place)
        print(f"{result.verdict:9}  {reader.name} {result.number}: {result.detail}  ({place})", flush=True)


def counts(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """Return a row per reader: numbers of inputs by verdict, and the slowest input in seconds of processor time."""
    return [
        {"reader": tally.reader.name, "inputs": tally.verdicts.total()}
        | {verdict: tally.verdicts[verdict] for verdict in VERDICTS}
        | {"slowest, s": tally.slowest}
        for tally in tallies
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of :func:`counts`, and their sum, as a Markdown table."""
    total = {key: sum(row[key] for row in rows) for key in ("inputs", *VERDICTS)}
    slowest = max((row["slowest, s"] for row in rows), default=0.0)
    lines = [
        [row["reader"], *(f"{row[key]:,}" for key in ("inputs", *VERDICTS)), f"{row['slowest, s']:.2f}"]
        for row in [*rows, {"reader": "all", **total, "slowest, s": slowest}]
    ]
    heading = ["reader", "inputs", *VERDICTS, "slowest, s"]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all readers together (%(default)s)")
    parser.add_argument(
        "--inputs", type=int, default=10**9, help="number of inputs per reader, fewer for slow ones (no limit)"
    )
    parser.add_argument("--reader", metavar="NAME", help="use only this reader, or those whose names contain NAME")
    parser.add_argument("--seed", type=int, default=0, help="seed of all inputs (%(default)s)")
    parser.add_argument("--number", type=int, help="read only this input, and show what happens")
    parser.add_argument("--out", type=Path, help="folder for the inputs that are findings (default: a new one)")
    add_option(parser, None)
    options = parser.parse_args(argv)
    chosen = choose(options.reader)
    if not chosen:
        parser.error(f"no reader {options.reader}; readers: {', '.join(reader.name for reader in readers())}")
    if options.number is not None:
        if len(chosen) > 1:
            parser.error(f"--number is of one reader; choose one with --reader: {', '.join(r.name for r in chosen)}")
        workers.show(chosen[0], options.seed, options.number)
        return 0
    check = Check("fuzz", options.results)
    out = (options.out or Path(tempfile.mkdtemp(prefix="rmsexp-findings-"))).absolute()
    tallies, seconds, interrupted = [Tally(reader) for reader in chosen], options.seconds, False
    start = time.monotonic()
    try:
        fuzz(tallies, options.seed, options.seconds, options.inputs, out)
    except KeyboardInterrupt:
        seconds, interrupted = time.monotonic() - start, True
        print(f"interrupted after {seconds:.0f} s", file=sys.stderr)
    print(table(counts(tallies)))
    kinds = sum(len(tally.findings) for tally in tallies)
    print(f"{kinds} kinds of findings" + (f", with their inputs in {out}" if kinds else ""))
    found = {"seconds": seconds, "inputs": options.inputs, "kinds": kinds, "readers": counts(tallies)}
    check.write(found | {"interrupted": interrupted})
    if not kinds and not options.out:
        shutil.rmtree(out)
    return 130 if interrupted else 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
