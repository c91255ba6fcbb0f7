"""The texts of the marked blocks of the pages that come from the committed report, and what other blocks share."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, mode
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

from rmsexp.records.frames import names, timing_records
from rmsexp.report.tables import markup
from rmsexp.report.tables.formats import NO_VALUE
from rmsexp.report.tables.verdicts import UNDECIDED, note_on_rates, qualified
from rmsexp.rules import claims
from rmsexp.rules.seeds import smallest
from rmsexp.system.readers import read_json, read_yaml

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
TASKS = ("cifar10", "language_model", "order_embedding", "attentive_reader", "rnnsearch", "transformer")
TEXTS = ["against_zero", "improving", "untuned", "remarks", "claim", "task", "unit", "outcome", "test"]
EQUALITY = "RMSNorm equals LayerNorm"
TARGETS = 0.88, 0.065  # of simulated campaigns: covered at least, and with a wrong verdict at most
PAPER_SAVINGS = {  # of RMSNorm and pRMSNorm in the paper, in percent
    "cifar10": ("20.5", "23.1"),
    "rnnsearch": ("11.0 to 34.0", "12.0 to 33.4"),
    "transformer": ("6.9", "9.3"),
    "attentive_reader": ("15.1", "15.8"),
    "order_embedding": ("40.8", "63.9"),
}
TIMES = re.compile(
    r"(?P<what>Time .+?),? and savings relative to (?P<baseline>LayerNorm|the eager norm) "
    r"\(interleaved, (?P<impl>[a-z ]+), (?P<threads>\d+ threads?), (?P<machine>.+? \(\w+\)), torch [\w.]+, "
    r"(?P<processes>\w+)"
)
SAVED = re.compile(r"(-?[\d.]+) % \((-?[\d.]+) to (-?[\d.]+) %\)")


def listed(words: Iterable[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def plain(device: str) -> str:
    """Return the name of a processor without marks, such as "Intel Xeon"."""
    return device.replace("(R)", "").replace(" Processor", "")


def table(rows: Sequence[Mapping[str, str]]) -> str:
    return markup.markdown(pd.DataFrame(rows)).strip()


@functools.cache
def verdicts() -> list[dict[Any, Any]]:
    """Return the decided claims of the report that no later campaign supersedes."""
    rows = pd.read_csv(REFERENCE / "report/verdicts.csv")
    rows = rows.assign(**{name: rows[name].fillna("").astype(str) for name in TEXTS})
    rows = rows[rows["outcome"] != UNDECIDED]
    files = {path.stem: read_yaml(path) for path in (ROOT / "configs/campaign").glob("*.yaml")}
    later = {name: file["supersedes"] for name, file in files.items() if "supersedes" in file}
    superseded = {(later.get(row["campaign"]), row["claim"]) for row in rows.to_dict("records")}
    return [row for row in rows.to_dict("records") if (row["campaign"], row["claim"]) not in superseded]


def verdicts_on(claim: str, *tasks: str) -> list[dict[Any, Any]]:
    """Return the verdicts on a claim, in the order of the tasks (default: all), each with a ``label``.

    This is "`cifar10`", or "`cifar10`, 12,000 steps" if campaigns with one claim differ in their number of steps.
    """
    found = []
    for task in tasks or TASKS:
        of_task = [row for row in verdicts() if row["task"] == task]
        rows = [row for row in of_task if row["claim"] == claim]
        times = Counter(row["claim"] for row in of_task)
        steps = {(row["claim"], final_steps(row)) for row in of_task if times[row["claim"]] > 1}
        several = len(steps) > len({each for each, _ in steps})
        found += [row | {"label": f"`{task}`" + f", {final_steps(row):,} steps" * several} for row in rows]
    return found


def final_steps(row: Mapping[Any, Any]) -> int:
    """Return the number of steps of the final runs of a verdict's campaign."""
    file = read_yaml(ROOT / f"configs/campaign/{row['campaign'].partition('+')[0]}.yaml")["runs"]
    recipe = OmegaConf.load(ROOT / f"configs/recipe/{row['task']}/{file['scale']}.yaml")
    return int(file.get("schedule.steps", recipe.schedule.steps))


class Saving(NamedTuple):
    """A cell of the report: how much of a step's time (or that of its norm layers) a norm saves, in percent.

    ``against``: "LayerNorm", or "the eager norm" for a fused norm. ``text``: the saving with its 95 % interval.
    """

    what: str
    against: str
    task: str
    setting: str
    impl: str
    machine: str
    processes: int
    norm: str
    text: str
    saved: float
    low: float
    high: float


@functools.cache
def savings() -> list[Saving]:
    """Return the savings in the report's tables of interleaved timings."""
    found, task, setting = [], "", ""
    for part in re.split(r"^##", (REFERENCE / "report/report.md").read_text(), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if place := re.match(r" (\w+), (\S+) \(", heading):
            task, setting = place.groups()
        if not (times := TIMES.match(heading.removeprefix("# "))):
            continue
        machine = f"{times['threads'].replace('1 thread', 'one thread')} of {times['machine']}"
        processes = int(times["processes"]) if times["processes"].isdigit() else 1
        cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
        for norm, _, cell, *_ in cells:
            if number := SAVED.match(cell):
                name = norm.removeprefix("| ")
                values = map(float, number.groups())
                where = (times["what"], times["baseline"], task, setting, times["impl"], machine, processes)
                found.append(Saving(*where, name, number[0], *values))
    return found


def of_steps(impl: str, norm: str, against: str = "LayerNorm") -> list[Saving]:
    """Return the savings of a norm in whole training steps at scale=small."""
    return [
        one
        for one in savings()
        if (one.what, one.setting, one.impl, one.norm, one.against) == ("Time per step", "small", impl, norm, against)
    ]


def answer() -> str:
    """On how many tasks the main claims are supported, and what LayerNorm and RMSNorm cost, in sentences."""
    main = (EQUALITY, f"p{EQUALITY}", "RMSNorm is better than no norm")
    rows = [row for claim in main for row in verdicts_on(claim)]
    refuted = [row for row in rows if row["outcome"] == claims.REFUTED]
    lost = {(row["claim"], row["task"]) for row in rows if row["outcome"] != claims.SUPPORTED}
    # a task counts if all campaigns on it say so
    held = {(row["claim"], row["task"]) for row in rows if row["outcome"] == claims.SUPPORTED and not row["blind"]}
    equal, partial, better = (sum(key[0] == claim for key in held - lost) for claim in main)
    worse = listed(dict.fromkeys(f"`{row['task']}`" for row in refuted if row["claim"] == main[2]))
    left_out = [
        f"`{one['task']}`, where shorter runs are {other['outcome']}"
        for one, *others in longest()
        for other in others
        if one["outcome"] == claims.SUPPORTED != other["outcome"]
    ]
    left_out += [
        f"{row['label']}, where a model without norm equals LayerNorm"
        for row in rows
        if row["blind"] and row["claim"] == EQUALITY
    ]
    counted = [row for row in rows if row["claim"] == main[1] and (main[1], row["task"]) in held - lost]
    unregistered = " (not registered)" * (not any(row["registered"] for row in counted))
    improving, all_tasks = sum(bool(row["improving"]) for row in rows), f"of {len(TASKS)}"
    octaves = any(note_on_rates(row) for row in rows)
    rates = ", and most learning rates came from coarse grids: longer runs and finer rates may decide otherwise"
    (eager, of_eager), (fused, of_fused) = cost("eager"), cost("fused")
    eager_saved, fused_saved = (
        spread((one.saved for one in of_steps(impl, "RMSNorm")), 0) for impl in ("eager", "fused")
    )
    quality = (
        f"With small models and short runs RMSNorm equals LayerNorm within a margin on {equal} {all_tasks} tasks, "
        f"pRMSNorm on {partial}{unregistered}. Not counted: {', and '.join(left_out)}. "
        f"RMSNorm is better than no norm on {better} {all_tasks}, and worse on {worse}. In {improving} of "
        f"{len(rows)} verdicts runs still improved{rates if octaves else ''}."
    )
    time = (
        f"On CPUs a training step takes {eager_saved} less time with RMSNorm than with LayerNorm if both are composed "
        f"of PyTorch's operations (*eager*), and {fused_saved} less with our *fused* kernels. LayerNorm "
        f"takes {eager} of an eager step and, where measurable, {fused} of a fused one; of that, RMSNorm "
        f"saves {of_eager} % eager and {of_fused} % fused (median, range)."
    )
    return f"{quality}\n\n{time}"


def longest() -> list[list[dict[Any, Any]]]:
    """Return the verdicts on RMSNorm's equality to LayerNorm on each task, that of the longest runs first."""
    return [sorted(verdicts_on(EQUALITY, task), key=final_steps, reverse=True) for task in TASKS]


def results() -> str:
    """A row per task: RMSNorm's difference to LayerNorm, the verdict, and the time that it saves over all CPUs.

    The difference is that of the longest runs; of shorter ones there is the verdict.
    """
    eager, fused = of_steps("eager", "RMSNorm"), of_steps("fused", "RMSNorm")
    rows, seeds = [], {}
    for one, *others in longest():
        task, decimals = one["task"], 4 if one["unit"] == "nats" else 2
        shorter = [f"{other['outcome']} after {final_steps(other):,} steps" for other in others]
        values = (round(one[key], decimals) + 0.0 for key in ("difference", "low", "high"))  # no minus zero
        difference, low, high = (f"{value:+.{decimals}f}" for value in values)
        seeds[f"`{task}`"] = int(one["seeds"])
        published = f"{PAPER_SAVINGS[task][0]} %" if task in PAPER_SAVINGS else NO_VALUE
        rows.append(
            {
                "task": f"`{task}`",
                "RMSNorm against LayerNorm": f"{difference} ({low} to {high}) {one['unit']}",
                "equal?": "; ".join([verdict(one), *shorter]),
                "step time saved, eager": spread(each.saved for each in eager if each.task == task),
                "step time saved, fused": spread(each.saved for each in fused if each.task == task),
                "the paper's saving": published,
            }
        )
    machines, usual = {re.sub(".* of ", "", one.machine) for one in fused}, mode(seeds.values())
    makers = {plain(machine).partition(" (")[0] for machine in machines}
    others = "; ".join(f"{task}: {count}" for task, count in seeds.items() if count != usual)
    return (
        f"{table(rows)}\n\nPositive: RMSNorm is better (`scale=medium`); in brackets 90 % intervals over {usual} "
        f"seeds ({others}). {coverage()} Step times (`scale=small`): lowest to highest on {len(machines)} CPUs "
        f"({', '.join(sorted(makers))}; one or two threads), [interleaved](docs/timing.md)."
    )


def verdict(row: Mapping[Any, Any]) -> str:
    """Return the verdict on a claim of equality, such as "yes, within ±1 BLEU; still improving"."""
    margin = f"{row['margin']:g} {row['unit']}"
    words = {claims.SUPPORTED: f"yes, within ±{margin}", claims.REFUTED: f"no, not within ±{margin}"}
    limits = qualified(row).partition(", ")[2].replace(", ", "; ")
    limits = limits.replace("cannot see a difference", "but so is a model without norm").replace(
        "but better", "slightly better"
    )
    if "registered" in row["remarks"]:
        limits = f"{limits}; rules registered after these runs"
    if "rates were chosen" in row["remarks"]:
        limits = f"{limits}; rates from shorter runs"
    if today := re.search(r"\w+ by today's rules", row["remarks"]):
        limits = f"{limits}; {today[0]}"
    return "; ".join(filter(None, [words.get(row["outcome"], f"undecided, partly beyond ±{margin}"), limits]))


def coverage() -> str:
    """How often the intervals of the table contained the truth, in simulated campaigns with the rules of each task."""
    (result,) = check("verdict_power")
    own = [row for row in result["tuned"] if (row["a"], row["b"]) == ("rms", "ln")]
    shares = {(row["campaign"], row["rule"]): 100 * row["coverage"] for row in own}
    fine, coarse = [], []
    for row, *_ in longest():
        if math.isnan(row["uncertainty_a"]):
            coarse.append((shares[row["campaign"], "octaves"], row["task"]))
        else:
            shorter = " (with rates from full runs)" if "rates were chosen" in row["remarks"] else ""
            fine.append(f"{shares[row['campaign'], 'quarters']:.0f} % on `{row['task']}`{shorter}")
    (low, worst), (high, _) = min(coarse), max(coarse)
    return (
        f"In simulations they contained the truth in {listed(fine)} and, for coarsely tuned rates, in {low:.0f} "
        f"(`{worst}`) to {high:.0f} %."
    )


def spread(values: Iterable[float], decimals: int = 1, unit: str = " %") -> str:
    values = sorted(values)
    return NO_VALUE if not values else f"{values[0]:.{decimals}f} to {values[-1]:.{decimals}f}{unit}"


def cost(impl: str) -> tuple[str, str]:
    """Return the share of a step that LayerNorm takes, where clearly above 0, and the % of it that RMSNorm saves."""
    none = {(one.task, one.machine): one.saved for one in of_steps(impl, "no norm") if one.low > 0}
    found = [one for one in of_steps(impl, "RMSNorm") if (one.task, one.machine) in none]
    shares = [100 * one.saved / none[one.task, one.machine] for one in found]
    return spread(none.values(), 0), f"{median(shares):.0f} ({min(shares):.0f} to {max(shares):.0f})"


def fused_steps() -> str:
    """How much less time fused steps take than eager ones, as ranges over CPUs."""
    rows = []
    for task in PAPER_SAVINGS:
        row = {"task": f"`{task}`"}
        for norm in ("LayerNorm", "RMSNorm"):
            found = of_steps("eager and fused", f"{norm} (fused)", "the eager norm")
            row[norm] = spread(one.saved for one in found if one.task == task)
        rows.append(row)
    return table(rows)


def gpu() -> str:
    """What RMSNorm saves of a step of `cifar10` on a GPU; the other savings there have wide intervals."""
    wanted = ("cifar10", "RMSNorm", "Time per step")
    (one,) = (one for one in savings() if "NVIDIA" in one.machine and (one.task, one.norm, one.what) == wanted)
    published = PAPER_SAVINGS[one.task][0]
    return f"On `{one.task}` RMSNorm saved {one.text} of a training step on an NVIDIA H200 (paper: {published} %)."


def gpu_hours() -> str:
    """How long runs of the paper's scale take on a GPU, and the memory of a step: eager RMSNorm, means over timings."""
    found = timing_records.load(REFERENCE / "nvidia-h200")
    columns, rows = ["median_seconds_per_1k_steps", "peak_bytes"], []
    for each in found[found["series"] == "rms"].groupby("task", as_index=False)[columns].mean().itertuples():
        steps = OmegaConf.load(ROOT / f"configs/recipe/{each.task}/paper.yaml").schedule.steps
        hours = each.median_seconds_per_1k_steps * steps / 1000 / 3600
        row = {
            "task": f"`{each.task}`",
            "steps": f"{steps:,}",
            "ms per step": f"{each.median_seconds_per_1k_steps:.0f}",
        }
        rows.append(row | {"hours": f"{hours:.1f}", "GPU memory, GB": f"{each.peak_bytes / 1e9:.1f}"})
    return table(rows)


def check(name: str) -> list[dict[str, Any]]:
    """Return the results of all records of a check."""
    return [read_json(path)["results"] for path in sorted(REFERENCE.glob(f"*/checks/{name}[0-9]/check.json"))]


def simulated() -> str:
    """Coverage and wrong verdicts of simulated campaigns."""
    (result,) = check("verdict_power")
    covered, wrong = [], []
    rows = {
        rule: [row for row in result["tuned"] if row["rule"] == rule] for rule in ("scatter", "quarters", "octaves")
    }
    for own in rows.values():
        shares = [100 * row["coverage"] for row in own]
        worst = min(own, key=lambda row: row["coverage"])["task"]
        covered.append(f"{min(shares):.1f} to {max(shares):.1f} % (median {median(shares):.1f} %, lowest on `{worst}`)")
        wrong.append(f"{max(100 * share for row in own for share in row['wrong']):.1f} %")
    known = max(share for case in result["known"] for shares in case["wrong"].values() for share in shares)
    older = {row["campaign"] for row in rows["octaves"]}
    decided = [row for row in rows["quarters"] if row["campaign"] not in older]
    return (
        f"The 90 % intervals contained the true difference in {covered[0]} of the simulated campaigns with today's "
        f"rules, in {covered[1]} with those of 28 to 30 November 2026, and in {covered[2]} with those before. In the "
        f"worst case {listed(wrong)} had a wrong verdict; if the best rates are known, {100 * known:.1f} %. The "
        f"targets are at least {100 * TARGETS[0]:.0f} % covered and at most {100 * TARGETS[1]:.1f} % wrong. Today's "
        f"rules miss them for {missed(rows['scatter'])}; those of 28 to 30 November, among the campaigns that were "
        f"decided by them, for {missed(decided)}."
    )


def missed(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the norms and campaigns of simulations that miss ``TARGETS``, with their shares, or "no campaign"."""
    found = []
    for row in rows:
        if row["coverage"] < TARGETS[0] or max(row["wrong"]) > TARGETS[1]:
            norms = " and ".join(names.label(row[key]) for key in "ab")
            shares = f"{100 * row['coverage']:.0f} % and {100 * max(row['wrong']):.0f} %"
            found.append(f"{norms} in `{row['campaign']}` ({shares})")
    return listed(found) or "no campaign"


def spreads() -> dict[str, tuple[float, dict[Any, Any]]]:
    """Return (standard deviation over seeds of RMSNorm - LayerNorm, its verdict) by "TASK medium SPLIT METRIC".

    Of several campaigns on a task, that with the most seeds counts.
    """
    found = {}
    for task in TASKS:
        row = max(verdicts_on(EQUALITY, task), key=lambda row: row["seeds"])
        found[f"{task} medium {row['score']}"] = (row["sd"], row)
    return found


def seeds() -> str:
    """Which difference between RMSNorm and LayerNorm campaigns see with 4, 8 and 16 seeds, and what tuning adds."""
    (result,) = check("verdict_power")
    own = [row for row in result["tuned"] if (row["rule"], row["a"], row["b"]) == ("scatter", "rms", "ln")]
    half = {row["campaign"]: row["half"][0] for row in own}
    rows = [
        {
            "task": f"`{row['task']}`",
            **{f"{count} seeds": f"{smallest(sd, count):.2g}" for count in (4, 8, 16)},
            "interval with tuning": f"±{half[row['campaign']]:.2g}",
            "margin": f"{row['margin']:g} {row['unit']}",
        }
        for sd, row in spreads().values()
    ]
    return table(rows)


BLOCKS = {
    "answer": answer,
    "results": results,
    "fused": fused_steps,
    "gpu": gpu,
    "gpu-hours": gpu_hours,
    "seeds": seeds,
    "simulated-campaigns": simulated,
}
