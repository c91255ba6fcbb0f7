"""``python -m rmsexp.timing task=… norms=[none,ln,rms,prms]``: time steps with several norms, interleaved.

    norms=[…]             norms to compare, with options as in prms+p=0.5; default [none,ln,rms,prms]
    impl=[eager]          implementations; [eager,fused] times each norm in both
    timing.reference=ln   the norm, with its options, that the others are compared with; its fused form if impl=[fused]
    timing.processes      number of fresh processes that measure (6); 1 is a quick look, which may not replicate
    timing.target_width   a process stops when no 95 % interval of a ratio within it is wider than this fraction of the
                          ratio (0.02), after at least 20 rounds
    timing.budget         seconds for all processes, with their start; default: 50 for each

With several processes the interval of a ratio is over processes. Each process measures at most four norms; more are
measured in groups that share the reference, each in timing.processes processes. Ctrl-C ends the command with a record
of the processes that have measured. Other KEY=VALUE words are those of ``python -m rmsexp``, such as scale=small. The
record goes to a new folder in results/<task>/<setting>/timing/.

The flag --calibrate measures for a minute, in five processes, how fast this machine is while it is quiet. Timings are
later compared with that, to find out whether something slowed them down.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmsexp import config
from rmsexp.config.timing import TimingConfig
from rmsexp.config.words import overrides
from rmsexp.system.command_line import Parser, command, entry_point, inform, value_word

CALIBRATE = ["--calibrate"]
# keys of a run that have no effect on a timing
UNUSED = ("norm", "norm.impl", "max_steps", "force", "log_every", "eval_every", "checkpoint_every", "logger")
OPTION = re.compile(r"(norms|impl|timing\.[^=]*)=")  # words with options of this command; the others are overrides


@dataclass
class Options:
    """The options of this command, which the help above explains."""

    norms: list[str] = field(default_factory=lambda: ["none", "ln", "rms", "prms"])
    impl: list[str] = field(default_factory=lambda: ["eager"])
    timing: TimingConfig = field(default_factory=TimingConfig)


@entry_point
def main(words: Sequence[str]) -> int:
    if words == CALIBRATE:
        from rmsexp.measure import calibration

        print(*calibration.calibrate(inform), sep="\n")
        return 0
    options, jobs = parse(words)
    from rmsexp.measure import processes

    processes.record(jobs, options.timing, inform, ["python", "-m", "rmsexp.timing", *words], _show)
    return 0


def parse(words: Sequence[str]) -> tuple[Options, dict[str, config.Job]]:
    """Return the options of a command line, and a job for each norm and implementation, by series (see config.Job).

    Raises: ConfigError for a mistake in the words; SystemExit with status 2 for an unknown flag, 0 after --help.
    """
    parser = Parser(prog="python -m rmsexp.timing", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_config_dir()
    parser.add_argument("--calibrate", action="store_true", help="measure how fast the quiet machine is, and store it")
    arguments = parser.parse_intermixed_args(words)
    if arguments.calibrate and list(words) != CALIBRATE:
        raise config.ConfigError("--calibrate takes no other words, and cannot be abbreviated")
    typed = overrides(arguments.words, arguments.config_dir)
    options: Options = config.from_words(Options, [word for word in typed if OPTION.match(word)])
    others = [word for word in typed if not OPTION.match(word)]
    for word in others:
        if word.lstrip("+").partition("=")[0] in UNUSED:
            raise config.ConfigError(f"{word} has no effect on a timing: use norms=[ln,rms], impl= and timing.budget=")
    for key, names in (("norms", options.norms), ("impl", options.impl)):
        if not names:
            raise config.ConfigError(f"{key} must name at least one: {key}=[{','.join(getattr(Options(), key))}]")
    jobs = []
    for impl, (norm, *of_norm) in itertools.product(options.impl, map(config.norm_words, options.norms)):
        jobs.append(config.job([*others, norm, value_word("norm.impl", impl), *of_norm], arguments.config_dir))
    reference = options.timing.reference
    if reference in options.norms and all(job.series != reference for job in jobs):  # it is timed fused only
        options.timing.reference = jobs[options.norms.index(reference)].series
    _check(options, jobs)
    return options, {job.series: job for job in jobs}


def _check(options: Options, jobs: Sequence[config.Job]) -> None:
    names = [job.series for job in jobs]
    config.check_one_setting("norms", jobs)
    if repeated := [name for name in names if names.count(name) > 1]:
        raise config.ConfigError(f"norms= and impl= give {repeated[0]} twice")
    if options.timing.reference not in names:
        raise config.ConfigError(f"timing.reference={options.timing.reference} is not one of {', '.join(names)}")
    impls = {job.impl for job in jobs}
    if impls != set(options.impl):
        listed = ",".join(sorted(impls))
        raise config.ConfigError(
            f"norms has series of other implementations than impl: write impl=[{listed}] instead of +impl=… in norms, "
            "so that each series is labelled with its implementation"
        )


def _show(folder: Path) -> None:
    """Write the table of the record in ``folder`` beside it; print it, the paths and a next command."""
    from rmsexp.commands.compare_steps import StepTimes

    times = StepTimes.read(folder)
    print(times)  # the record stands, so it is shown before anything that could fail, such as on a full disk
    times.write_table()
    print(f"next    {command('rmsexp.report', str(Path(*folder.parts[:-4])))}")
