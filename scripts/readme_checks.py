"""The texts of the marked blocks of the pages that come from records of checks and benchmarks alone."""

from collections import defaultdict
from itertools import product
from statistics import geometric_mean
from typing import Any

import pandas as pd
from readme_blocks import REFERENCE, check, listed, plain, spread, table

from rmsexp.records.frames import names
from rmsexp.rules import claims
from rmsexp.rules.ratios import paired_ratio
from rmsexp.system.readers import read_json

LARGE = 4_000_000  # elements of shapes that do not fit into caches


def newest() -> dict[str, dict[str, Any]]:
    """Return the newest benchmark of norms of each CPU, by the name of its processor."""
    records = [read_json(path) for path in REFERENCE.glob("*/bench/norms*/bench.json")]
    return {plain(one["session"]["device"]): one for one in sorted(records, key=lambda one: one["session"]["started"])}


def torch_layers() -> str:
    """How long torch's and our RMSNorm take, relative to torch's LayerNorm, by the newest benchmark of each CPU."""
    found, ours = {}, []
    for device, record in newest().items():
        times = [case["seconds"] for case in record["measurements"] if case["passes"] == "forward + backward"]
        ratios = [
            paired_ratio(each["nn.RMSNorm"], each["nn.LayerNorm"]).ratio for each in times if "nn.RMSNorm" in each
        ]
        found[device] = f"{geometric_mean(ratios):.1f} times ({device})"
        ours += [paired_ratio(each["rms fused"], each["nn.LayerNorm"]).ratio for each in times]
    each = listed(found[device] for device in sorted(found))
    return (
        f"On CPUs PyTorch's `nn.RMSNorm` takes {each} as long as its `nn.LayerNorm`, our fused RMSNorm "
        f"{min(ours):.1f} to {max(ours):.1f} times (forward and backward)."
    )


def yardstick() -> str:
    """How fast fused RMSNorm is beside torch's LayerNorm, others' RMSNorms and a triad: each CPU's newest record."""
    rows, records = [], newest()
    for device, passes in product(sorted(records), ("forward", "forward + backward")):
        cases = [case for case in records[device]["measurements"] if case["passes"] == passes]
        layers, compiled, community = (
            [paired_ratio(case["seconds"][a], case["seconds"][b]).ratio for case in cases if a in case["seconds"]]
            for a, b in (
                ("rms fused", "nn.LayerNorm"),
                ("rms compiled", "rms fused"),
                ("kernels_community eager", "rms fused"),
            )
        )
        shares = [
            case["bytes"]["rms fused"]
            / case["bytes"]["triad"]
            * paired_ratio(case["seconds"]["triad"], case["seconds"]["rms fused"]).ratio
            for case in cases
            if case["elements"] >= LARGE
        ]
        rows.append(
            {
                "processor": device,
                "passes": passes,
                "time, `nn.LayerNorm` = 1": f"{geometric_mean(layers):.2f} ({min(layers):.2f} to {max(layers):.2f})",
                "compiled RMSNorm's time, fused = 1": spread(compiled, unit=""),
                "kernels-community's, fused = 1": spread(community, unit=""),
                "bytes per second, triad = 1, two largest shapes": spread(shares, unit=""),
            }
        )
    return f"Fused RMSNorm, one process each (geometric mean, and range over shapes):\n\n{table(rows)}"


def trainer() -> str:
    """How long a step of the trainer takes, relative to that of a plain loop."""
    ratios = [
        paired_ratio(result["seconds"]["trainer"], result["seconds"]["plain loop"]).ratio
        for result in check("trainer_overhead")
        if "trainer" in result["seconds"]
    ]
    times = f"{min(ratios):.3f} to {max(ratios):.3f} times"
    return f"On CIFAR-10's demo a step of the trainer took {times} as long as one of the plain loop."


def compiled() -> str:
    """How long training steps take if torch compiles the model, relative to fused norms: with eager ones and fused."""
    eager, fused = check("bench")
    steps = {case.removesuffix(" fused"): found["ratio"] for case, found in eager.items()}
    longest, shortest = max(steps, key=steps.__getitem__), min(steps, key=steps.__getitem__)
    both = listed(f"{found['ratio']:.2f} (`{case.removesuffix(' fused')}`)" for case, found in fused.items())
    return (
        f"On AMD EPYC, with one thread at `scale=demo`, steps of {len(steps)} tasks with eager RMSNorm and "
        f"`compile=true` took {steps[shortest]:.2f} (`{shortest}`) to {steps[longest]:.2f} (`{longest}`) times as long "
        f"as with fused RMSNorm alone; with fused RMSNorm and `compile=true` {both}."
    )


def joeynmt() -> str:
    """How many target tokens the trainer takes in the time in which JoeyNMT takes one, by model and processor."""
    records = [read_json(path) for path in sorted(REFERENCE.glob("*/checks/joeynmt_speed*/check.json"))]
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        result, device = record["results"], plain(record["session"]["device"])
        ratio = paired_ratio(result["rmsexp"], result["joeynmt"]).ratio
        found[result["model"]].append(f"{ratio:.1f} ({device})")
    times = listed(f"{' and '.join(ratios)} times as many with `{model}`" for model, ratios in found.items())
    return f"rmsexp trained {times}."


def processes() -> str:
    """How much two processes train in the time of one process with two threads."""
    (result,) = check("distributed_throughput")
    ratios = [next(iter(task["ratios"].values()))["ratio"] for task in result["tasks"]]
    shares = [100 * task["communication_share"] for task in result["tasks"]]
    return (
        f"On a machine with two cores, two processes of one thread trained {min(ratios):.2f} to {max(ratios):.2f} "
        f"times as fast as one process of two threads; {min(shares):.0f} to {max(shares):.0f} % of a step was "
        "communication."
    )


def neighbours() -> str:
    """How many runs beside planted neighbours, and how many quiet ones, were marked as disturbed."""
    parts = []
    for path in sorted(REFERENCE.glob("*/checks/planted_neighbours[0-9]/check.json")):
        record = read_json(path)
        counts = {kind: f"{each['marked']} of {each['runs']}" for kind, each in record["results"]["summary"].items()}
        beside = "{same_core} beside a process on the same core, {other_core} beside one on the other, {memory} beside "
        beside = f"{beside}one that reads memory, and {{quiet}} quiet ones".format(**counts)
        parts.append(f"{plain(record['session']['device'])}: {beside}")
    return f"Runs that were marked, on {'; on '.join(parts)}."


def disturbed() -> str:
    """How disturbed runs, campaigns and sweeps ended."""
    names = {"a run": "chaos", "a campaign's workers": "campaign_kills", "jobs of a sweep": "preempted_sweep"}
    kills = [
        f"{sum(one['kills'] for one in check(name))} kills of {what}" for what, name in names.items() if check(name)
    ]
    errors = sum(len(one["errors"]) for name in (*names.values(), "chaos_sweep") for one in check(name))
    faults = sum(one["faults"] for one in check("chaos_sweep"))
    causes = sum(len(one["causes"]) for one in check("chaos_sweep"))
    return (
        f"In the committed records there are {listed([*kills, f'{faults} other faults in sweeps'])}. After them "
        f"{errors or 'no'} differences to undisturbed runs remained; {causes} runs of the sweeps first failed with a "
        "named cause."
    )


def timing_intervals() -> str:
    """Coverage of the intervals of timings: simulated, and of equal and slowed models."""
    (coverage,) = check("timing_coverage")
    shares = [100 * line["over_processes"] for line in coverage["lines"]]
    (power,) = check("timing_power")
    equal, slowed = power["summary"]["equal"], power["summary"]["slowed"]
    return (
        f"In simulations the interval over six processes contained the true ratio in {min(shares):.1f} to "
        f"{max(shares):.1f} % of the timings. On a real machine it contained 1 in {equal['right']} of "
        f"{equal['trials']} timings of two equal models, and lay above 1 in {slowed['right']} of {slowed['trials']} "
        f"in which one model idled for {100 * power['trials'][-1]['share']:g} % of each step."
    )


def layers() -> str:
    """Absolute cosines of norms' inputs with the vector of ones: medians over a task's layers, last evaluation."""
    found: dict[str, dict[str, float]] = {}
    for path in sorted(REFERENCE.glob("*/checks/layers*/*/*/layers.csv")):
        rows = pd.read_csv(path)
        last = rows[rows["step"] == rows["step"].max()]
        found.setdefault(path.parts[-3], {})[path.parts[-2].partition("+")[0]] = float(last["cosine"].median())
    cosines = listed(f"{of['ln']:.2f} and {of['rms']:.2f} on `{task}`" for task, of in found.items())
    return f"Median cosines with LayerNorm and with RMSNorm: {cosines}."


def dose() -> str:
    """How large the mean of norms' inputs is beside their spread if initial weights are centred on 0 and on 0.4."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(REFERENCE.glob("*/checks/dose*/*/*/layers.csv")):
        rows = pd.read_csv(path)
        values = rows.loc[rows["step"] == rows["step"].min(), "mean_over_spread"]
        norm = names.label(names.without_impl(path.parts[-2]))
        middle, most = (f"{value:.{0 if value >= 10 else 2}f}" for value in (values.median(), values.max()))
        found[path.parts[-3]].append(f"{middle} (at most {most}) with {norm}")
    each = "; ".join(f"centred on {centre}, {listed(values)}" for centre, values in found.items())
    return f"The mean of a norm's input over its spread at step {rows['step'].min()}, median over layers: {each}."


def against_itself() -> str:
    """How campaigns like ``quick`` decide between RMSNorm and itself, with seeds that differ."""
    (result,) = check("quick_against_itself")
    found, seeds = result["verdicts"], 2 * result["seeds"]
    supported = sum(each["outcome"] == claims.SUPPORTED for each in found)
    within, wider = sum(each["contains_zero"] for each in found), sum(not each["against_zero"] for each in found)
    return (
        f"In {len(found)} comparisons of RMSNorm with itself, each with {seeds} seeds of its own at one rate, "
        f"equality was supported in {supported}; the 90 % interval contained 0 in {within}, and the 95 % interval in "
        f"{wider}."
    )


BLOCKS = {
    "torch-layers": torch_layers,
    "yardstick": yardstick,
    "trainer": trainer,
    "compiled": compiled,
    "processes": processes,
    "disturbed": disturbed,
    "neighbours": neighbours,
    "timing-intervals": timing_intervals,
    "layers": layers,
    "joeynmt": joeynmt,
    "dose": dose,
    "against-itself": against_itself,
}
