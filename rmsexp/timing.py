"""``python -m rmsexp.timing task=… norms=[none,ln,rms,prms]``: what a norm costs, measured by turns in one process.

    norms=[…]             series to compare, as their folders are named (prms+p=0.5); default [none,ln,rms,prms]
    impl=[eager]          each of the norms in each of these implementations: [eager,fused]
    timing.reference=ln   the series that the others are compared with
    timing.layers=false   true: the norm layers alone, with the calls that steps of the task make
    timing.target_width   of the widest 95 % interval of a ratio, at which it stops (0.02)
    timing.budget         seconds of measuring, after which it stops anyway (120)

and any KEY=VALUE of ``python -m rmsexp``, such as scale=small. The record goes to results/<task>/<setting>/timing/.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmsexp import checks, config, record
from rmsexp.compare import timing

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rmsexp.measure.interleaved import Interleaved, Round

OWN = re.compile(r"(norms|impl|timing\.[^=]*)=")
FEWEST_ROUNDS = 20  # an interval from fewer says little
PARTS_BLOCKS = 9
REPLAYED = range(0, 63, 7)  # steps whose calls are timed alone: batches of one pool may be sorted by length


@dataclass
class TimingConfig:
    """The keys below ``timing.``."""

    layers: bool = False
    reference: str = "ln"
    target_width: float = 0.02
    budget: float = 120.0

    def __post_init__(self) -> None:
        checks.positive("timing.target_width", self.target_width)
        checks.positive("timing.budget", self.budget)


@dataclass
class Options:
    """What of the command line is the timing's own."""

    norms: list[str] = field(default_factory=lambda: ["none", "ln", "rms", "prms"])
    impl: list[str] = field(default_factory=lambda: ["eager"])
    timing: TimingConfig = field(default_factory=TimingConfig)


class Series(NamedTuple):
    """One norm with its options, as a job of its own."""

    name: str
    job: config.Job


class Measured(NamedTuple):
    """The rounds, the ratio of each series to the reference, and why it stopped."""

    rounds: list[Round]
    ratios: dict[str, timing.Interval]
    stopped: str


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    try:
        options, series = parse([config.expand_home(word) for word in words])
    except config.ConfigError as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 2
    from rmsexp.data import DataError

    try:
        folder = measure(options, series)
    except (DataError, ValueError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rmsexp: interrupted; nothing is recorded of a timing that did not end", file=sys.stderr)
        return 130
    _show(folder)
    return 0


def parse(words: Sequence[str]) -> tuple[Options, list[Series]]:
    """The options and the series of a command line.

    Raises: ConfigError.
    """
    options: Options = config.from_words(Options, [word for word in words if OWN.match(word)])
    others = [word for word in words if not OWN.match(word)]
    if any(word.startswith("norm=") for word in others):
        raise config.ConfigError("norms to compare are named together: norms=[ln,rms]")
    if any(word.startswith("norm.impl=") for word in others):
        raise config.ConfigError("implementations to compare are named together: impl=[eager,fused]")
    series = [_series(name, impl, others) for impl in options.impl for name in options.norms]
    _check(options, series)
    return options, series


def _series(name: str, impl: str, others: Sequence[str]) -> Series:
    norm, *own = name.split("+")
    job = config.job([*others, f"norm={norm}", f"norm.impl={impl}", *(f"norm.{option}" for option in own)])
    return Series(job.series, job)


def _check(options: Options, series: Sequence[Series]) -> None:
    names = [one.name for one in series]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise config.ConfigError(f"norms and impl name {twice} twice")
    if options.timing.reference not in names:
        raise config.ConfigError(f"timing.reference={options.timing.reference} is not one of {', '.join(names)}")
    impls = {one.job.norm.impl for one in series}
    if impls != set(options.impl):
        both = ",".join(sorted(impls))
        raise config.ConfigError(
            f"implementations {both} have no common axis unless each series says which it is: "
            f"impl=[{both}] does so, +impl=… in norms does not"
        )


def measure(options: Options, series: Sequence[Series]) -> Path:
    """Times the series by turns and writes the record; returns its folder."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler, which tells the memory, talks
    from rmsexp.train import provenance
    from rmsexp.train.device import set_up_device

    cfg = series[0].job.config
    device = set_up_device(cfg)
    say(f"timing task={cfg.task} scale={series[0].job.setting}: {', '.join(one.name for one in series)}")
    turns, kept, dataset = contestants(options, series, device)
    turns.warm_up()
    session = provenance.session(device, 0)
    measured = take_turns(options, turns, [one.name for one in kept])
    seconds = [one.seconds for one in measured.rounds]
    parts, peaks = turns.parts(PARTS_BLOCKS), turns.peak_bytes()
    kind = "layers" if options.timing.layers else "steps"
    content = {
        "format": 1,
        **{key: getattr(cfg, key) for key in ("task", "scale", "seed", "precision")},
        "setting": series[0].job.setting,
        "kind": kind,
        "reference": options.timing.reference,
        "options": asdict(options.timing),
        "stopped": measured.stopped,
        "dataset": dataset,
        "session": session | {"contention": turns.contention.report()},
        "steps_per_block": turns.steps_per_block,
        "data_seconds": statistics.median(one.data for one in measured.rounds),
        "series": [
            {
                "series": one.name,
                "impl": one.job.norm.effective_impl,
                "seconds": [round(seconds, 7) for seconds in own],
                "parts": of_parts,
                "peak_bytes": peak,
            }
            for one, own, of_parts, peak in zip(kept, zip(*seconds, strict=True), parts, peaks, strict=True)
        ],
    }
    folder = timing.new_folder(series[0].job.setting_folder / "timing", kind)
    folder.mkdir(parents=True)
    record.write_json(folder / timing.FILE, content)
    return folder


def contestants(
    options: Options, series: Sequence[Series], device: torch.device
) -> tuple[Interleaved, list[Series], dict[str, Any]]:
    """Each series with a task, a model and an optimiser of its own, all on the batches of the first.

    Returns the series that have something to time, and what the record says of the data.
    """
    from rmsexp.measure.interleaved import Contestant, Interleaved
    from rmsexp.train.device import compile_model
    from rmsexp.train.step import Settings, Stepper

    kept: list[Series] = []
    found: list[Contestant] = []
    source: Any = None
    for one in series:
        cfg = one.job.config
        task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
        task.prepare(say if source is None else lambda _: None)
        source = source or task
        model: nn.Module = task.build(one.job.norm)
        task.initialise(model)
        compile_model(model, cfg)
        contestant: Contestant = Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
        if options.timing.layers:
            replay = _replay(contestant, source.batches)
            if replay is None:
                say(f"{one.name} has no norm layers and is left out")
                continue
            contestant = replay
        kept.append(one)
        found.append(contestant)
    if options.timing.reference not in [one.name for one in kept]:
        raise ValueError(f"timing.reference={options.timing.reference} has no norm layers to compare with")
    return Interleaved(found, source.batches, device, series[0].job.config.seed), kept, asdict(source.dataset)


def _replay(contestant: Any, batches: Callable[[int], Sequence[Any]]) -> Any:
    """The norm layers of a model alone, with the calls of some steps; None if it has none."""
    from rmsexp.measure import replay
    from rmsexp.train.randomness import standard_normal

    found = []
    for step in REPLAYED:
        with replay.recorded(contestant.model) as of_step:
            contestant.take(step, batches(step))
        found.append(of_step)
    if not all(found):
        return None
    seed, device = contestant.settings.seed, contestant.settings.device
    return replay.Replay(found, lambda shape, dtype: standard_normal(shape, seed, "values", device=device).to(dtype))


def take_turns(options: Options, turns: Interleaved, names: Sequence[str]) -> Measured:
    """Rounds until the intervals are narrow enough or the budget is spent."""
    from rmsexp.train.clock import Stopwatch

    wanted, budget = options.timing.target_width, options.timing.budget
    watch, look_at = Stopwatch(), FEWEST_ROUNDS
    rounds: list[Round] = []
    for one in turns.rounds():
        rounds.append(one)
        spent = watch.seconds > budget and len(rounds) > 1
        if len(rounds) < look_at and not spent:
            continue
        look_at = len(rounds) + max(4, len(rounds) // 4)  # not at every round: a look may stop at a lucky interval
        seconds = dict(zip(names, zip(*(one.seconds for one in rounds), strict=True), strict=True))
        reference = seconds[options.timing.reference]
        ratios = {name: timing.paired_ratio(own, reference) for name, own in seconds.items()}
        widest = max(ratio.width for ratio in ratios.values())
        shown = ", ".join(f"{name} {ratio.ratio:.3f}" for name, ratio in ratios.items())
        say(
            f"{len(rounds)} rounds, {watch.seconds:.0f} of {budget:.0f} s: {shown}; "
            f"widest interval {widest:.3f} ({wanted:g} wanted)"
        )
        if widest <= wanted and len(rounds) >= FEWEST_ROUNDS:
            return Measured(rounds, ratios, "narrow enough")
        if spent:
            return Measured(rounds, ratios, "budget spent")
    raise AssertionError("rounds do not end")


def _show(folder: Path) -> None:
    """Writes the table and the figure of a record beside it, and says what was found and where it lies."""
    import pandas as pd

    from rmsexp.compare import figures

    rows = pd.DataFrame(timing.rows(record.read_json(folder / timing.FILE), str(folder)), columns=list(timing.COLUMNS))
    record.write_atomic(folder / "timing.csv", rows.to_csv(index=False))
    figures.write(timing.draw(rows), folder / "timing")
    print(timing.readable(rows).to_string(index=False), *timing.notes(rows), sep="\n")
    print(f"record  {folder / timing.FILE}\nfigure  {folder / 'timing.png'}")
    print(f"next    python -m rmsexp.report {Path(*folder.parts[:-4])}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
