"""What the checks of the scripts found, from their records (scripts/check_record.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import disturb
import fuzz as fuzzing
import numpy as np
import planted_neighbours
import timing_coverage as simulated
import verdict_power

from readme_blocks import quality
from readme_blocks.evidence import Evidence
from readme_blocks.text import counted, listed, machine, not_recorded, paragraphs, plural, sentences, table
from rmsexp.records.frames.time_states import time_state
from rmsexp.records.frames.timing_records import replication
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import paired_ratio

SINGLE = replication(1)
AT_TAG = "git checkout before-house;"  # before commands of scripts that this tree no longer has
OVERHEAD = "python scripts/trainer_overhead.py --rounds 30 norm=none model.dropout=0 model.noise=0"
OVERHEAD_LM = "python scripts/trainer_overhead.py --steps 20 task=language_model scale=small norm=rms threads=1"


def verdict_rules(evidence: Evidence) -> str:
    """Intervals, wrong verdicts and power of simulated campaigns: two tables, and what they show."""
    found = evidence.checks("verdict_power")
    if not found:
        return not_recorded("python scripts/verdict_power.py --results results/reference/computed")
    results = next(iter(found.values()))["results"]
    return paragraphs(*verdict_power.tables(results), sentences(*verdict_power.findings(results)))


def fuzz(evidence: Evidence) -> str:
    """How readers and commands took damaged files and strange arguments."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        found = f"{plural(results['kinds'], 'kind')} of findings" if results["kinds"] else "no findings"
        head = f"In {results['seconds']:.0f} s at commit {commit_of(content)}: {found}."
        note = (
            "Findings are tracebacks, crashes, inputs that took more than 5 s of processor time (slow) or 1 GiB of "
            "memory (big), damage that changed a result without a word (silent), and too long messages. The slowest "
            "input is in seconds of processor time; that of whole processes is not measured."
        )
        return paragraphs(head, fuzzing.table(results["readers"]), note)

    return newest(evidence, "fuzz", "python scripts/fuzz.py --seconds 520 --results results", describe)


def chaos_sweep(evidence: Evidence) -> str:
    """How a sweep ended that was disturbed."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        errors = len(results["errors"])
        return paragraphs(
            f"At commit {commit_of(content)}, {results['faults']} faults took {results['seconds'] / 60:.0f} minutes. "
            f"{plural(results['identical'], 'run')} ended as in the undisturbed sweep, {len(results['causes'])} first "
            f"failed with a named cause, and {errors or 'none'} {'were' if errors else 'was'} lost or silently "
            "different.",
            disturb.table(results["ends"]),
            "The status 143 stands for SIGTERM, with which all processes are stopped that no other signal stops. The "
            "status 1 stands for a sweep in which a run failed.",
        )

    command = "python scripts/disturb.py chaos_sweep --times 100 --results results"
    return newest(evidence, "chaos_sweep", command, describe)


def kills(evidence: Evidence) -> str:
    """How a run, and a campaign, ended that were killed again and again."""

    def describe(what: str) -> Callable[[Mapping[str, Any]], str]:
        def sentence(content: Mapping[str, Any]) -> str:
            results = content["results"]
            errors = results["errors"]
            end = f"{plural(len(errors), 'difference')} remained" if errors else "no difference remained"
            return f"At commit {commit_of(content)}, after {results['kills']} kills of {what}, {end}."

        return sentence

    run = newest(evidence, "chaos", "python scripts/disturb.py chaos --results results", describe("a run"))
    command = "python scripts/disturb.py campaign_kills --results results"
    return sentences(run, newest(evidence, "campaign_kills", command, describe("workers of a campaign")))


def preempted_sweep(evidence: Evidence) -> str:
    """How a sweep ended whose jobs were pre-empted and killed."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        return (
            f"At commit {commit_of(content)}, {results['runs']} runs got SIGUSR2, and {results['kills']} of them "
            f"SIGKILL after that. {remained(results['errors'])} to the undisturbed sweep."
        )

    command = "python scripts/disturb.py preempted_sweep --results results"
    return newest(evidence, "preempted_sweep", command, describe)


def ray_node_lost(evidence: Evidence) -> str:
    """How runs ended of which Ray lost a node."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        if "lost" not in results:
            return _node_lost_of_campaign(content)
        lost, sessions, places = results["lost"], results["sessions"], results["places"]
        last = sorted({places[run][-1] for run in lost})
        return sentences(
            f"At commit {commit_of(content)}, {results['runs']} small runs were done on "
            f"{results['nodes']} nodes with {results['cores']} cores each.",
            f"Node 2 was removed when {results['ended']} of them had ended. It was training {plural(len(lost), 'run')}"
            f", at steps {listed(map(str, lost.values()))}.",
            f"They were continued at steps {listed(str(step) for run in lost for step in sessions[run][1:])}, and "
            f"ended on {listed(f'node {number}' for number in last)}.",
            f"{remained(results['errors'])} to the undisturbed sweep.",
        )

    return newest(evidence, "ray_node_lost", "python scripts/disturb.py ray_node_lost --results results", describe)


def _node_lost_of_campaign(content: Mapping[str, Any]) -> str:
    """The text of a record of commit 6b3ea2f or before, when the runs were those of scripts/campaign_kills.py."""
    results = content["results"]
    starts = results["sessions"].values()
    continued = [later for _, *later in starts if later]
    were = "one was" if len(continued) == 1 else f"{len(continued)} were"
    steps = listed(dict.fromkeys(str(step) for later in continued for step in later))
    return sentences(
        f"At commit {commit_of(content)}, one of {results['nodes']} nodes was removed while both trained.",
        f"Of {plural(len(starts), 'run')}, {were} interrupted by this and continued at step {steps}.",
        f"{remained(results['errors'])} to the undisturbed campaign.",
    )


def distributed_throughput(evidence: Evidence) -> str:
    """What a second process gains: a row per task."""

    def describe(content: Mapping[str, Any]) -> str:
        rows = []
        for task in content["results"]["tasks"]:
            rows.append({"task": f"`{task['task']}`, {task['setting']}"})
            for name, ratio in task["ratios"].items():
                rows[-1][f"throughput of {name}"] = "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**ratio)
            rows[-1]["communication, share of a step"] = f"{100 * task['communication_share']:.0f} %"
            rows[-1]["time state"] = ", ".join(sorted({one["state"] for one in task["repetitions"]}))
        repetitions, rounds = (content["results"][name] for name in ("repetitions", "rounds"))
        how = f"Interleaved, {plural(repetitions, 'repetition')} in processes of their own, {rounds} rounds in each."
        return paragraphs(table(rows), sentences(how, f"{machine(content)}, commit {commit_of(content)}."))

    command = "python scripts/distributed_throughput.py --results results"
    return newest(evidence, "distributed_throughput", command, describe)


def remained(errors: list[str]) -> str:
    return f"{plural(len(errors), 'difference').capitalize()} remained" if errors else "No difference remained"


def newest(evidence: Evidence, name: str, command: str, describe: Callable[[Mapping[str, Any]], str]) -> str:
    found = evidence.checks(name)
    return describe(next(iter(found.values()))) if found else not_recorded(command)


def commit_of(content: Mapping[str, Any]) -> str:
    return str(content["session"]["git"]["commit"])[:7]


def trainer_overhead(evidence: Evidence) -> str:
    """How much longer the trainer takes than a plain loop: a row per record and loop, also of the language model."""
    found = evidence.all_checks("trainer_overhead")
    rows = [
        {
            "run": f"`{content['command'].partition('trainer_overhead.py ')[2]}`",
            "loop": loop,
            **_loop_speed(content["results"], loop),
            "machine": evidence.link(machine(content), folder),
            "method": f"{len(seconds)} rounds of blocks of {content['results']['steps']} steps, {SINGLE}",
            "time state": time_state(content["session"]),
        }
        for folder, content in found.items()
        for loop, seconds in content["results"]["seconds"].items()
    ]
    tasks = {content["results"]["task"] for content in found.values()}
    missing = [] if tasks - {"language_model"} else [not_recorded(OVERHEAD)]
    missing += [] if "language_model" in tasks else [not_recorded(OVERHEAD_LM, "`language_model`")]
    return paragraphs(table(rows) if rows else "", *missing)


def _loop_speed(results: Mapping[str, Any], loop: str) -> dict[str, str]:
    """Return the speed of a loop, and its time relative to that of the plain loop, which is the last one."""
    seconds, tokens = results["seconds"], results["tokens_per_step"]
    step = float(np.median(seconds[loop])) / results["steps"]
    *_, plain = seconds.values()
    return {
        "ms per step (median)": f"{1000 * step:.1f}",
        "tokens per second": f"{tokens / step:,.0f}" if tokens else formats.NO_VALUE,
        "time / that of the plain loop (95 % interval)": formats.ratio(paired_ratio(seconds[loop], plain)),
    }


def commits(evidence: Evidence) -> str:
    """Speed-ups between commits: a row per record."""
    rows = []
    for folder, content in evidence.all_checks("compare_commits").items():
        results = content["results"]
        speed_ups = [
            paired_ratio(results["seconds"]["before, eager"], results["seconds"][name])
            for name in ("after, eager", "after, fused")
        ]
        eager, fused = (f"{one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})" for one in speed_ups)
        rows.append(
            {
                "task": f"`{results['task']}`, {results['series']}",
                "commits": f"{results['before'][:7]} to {results['after'][:7]}",
                "speed-up of eager steps": eager,
                "speed-up of fused steps": fused,
                "machine": evidence.link(machine(content), folder),
                "method": f"interleaved, {len(results['seconds']['before, eager'])} rounds, {SINGLE}",
                "time state": time_state(content["session"]),
            }
        )
    command = "python scripts/compare_commits.py 127c228 HEAD -- task=rnnsearch norm=rms scale=small threads=1"
    return table(rows) if rows else not_recorded(command)


def timing_power(evidence: Evidence) -> str:
    """How many intervals contain the ratio of equal models, and exclude that of a slowed one."""

    def describe(content: Mapping[str, Any]) -> str:
        trials, summary = content["results"]["trials"], content["results"]["summary"]
        texts = {
            kind: f"{found['right']} of {found['trials']} trials ({100 * found['low']:.0f} to "
            f"{100 * found['high']:.0f} % with 95 % confidence)"
            for kind, found in summary.items()
        }
        widths = [trial["high"] - trial["low"] for trial in trials]
        processes = Counter(len(trial["estimates"]) for trial in trials).most_common(1)[0][0]
        of_slowed = f"With a model that idles for {100 * trials[0]['share']:g} % of each step's time it"
        return sentences(
            f"With equal models the interval contained the ratio 1 in {texts['equal']}." if "equal" in texts else "",
            f"{of_slowed} lay above 1 in {texts['slowed']}." if "slowed" in texts else "",
            f"A trial has {plural(processes, 'process')} of its own, which share {trials[0]['budget']:g} s. The median "
            f"width of the intervals was {np.median(widths):.3f}. Time states of the trials: "
            f"{counted([trial['time_state'] for trial in trials])}.",
            f"The command was `{content['command']}`, on {machine(content)}, commit {commit_of(content)}.",
        )

    return newest(evidence, "timing_power", "python scripts/timing_power.py", describe)


def timing_coverage(evidence: Evidence) -> str:
    """How often the intervals of simulated timings contain the true ratio."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        shares = [100 * line["over_processes"] for line in results["lines"]]
        alone = [100 * line["within_process"] for line in results["lines"] if line["spread"] == 0]
        return paragraphs(
            simulated.markdown(results["lines"]),
            sentences(
                f"Each line is from {results['trials']:,} timings (commit {commit_of(content)}). The interval over six "
                f"processes contains the true ratio in {min(shares):.1f} to {max(shares):.1f} % of them.",
                f"The interval of one process contains it in {min(alone):.1f} to {max(alone):.1f} % if processes do "
                "not differ, and far less often if they do, because it does not include the spread of processes.",
            ),
        )

    command = "python scripts/timing_coverage.py --results results/reference/computed"
    return newest(evidence, "timing_coverage", command, describe)


def trivial_answers(evidence: Evidence) -> str:
    """The errors of trivial answers to the reader's questions."""

    def describe(content: Mapping[str, Any]) -> str:
        results = content["results"]
        return sentences(
            *(
                f"Of the {split['questions']:,} questions of {results['dataset']} ({name}), the most frequent entity "
                f"of the passage is the wrong answer to {100 * split['most_frequent']:.1f} %, and a random one to "
                f"{100 * split['random']:.1f} %."
                for name, split in results["splits"].items()
            ),
            *(
                quality.same_answers(evidence, name, split["always_the_same"])
                for name, split in results["splits"].items()
                if "always_the_same" in split
            ),
        )

    command = f"{AT_TAG} python scripts/trivial_answers.py scale=small --results results/reference/computed"
    return newest(evidence, "trivial_answers", command, describe)


def neighbours(evidence: Evidence) -> str:
    """How many runs beside planted neighbours were marked as contended: the newest record of each place."""
    found = evidence.checks("planted_neighbours").values()
    return paragraphs(*map(_neighbours, found)) if found else not_recorded("python scripts/planted_neighbours.py")


def _neighbours(content: Mapping[str, Any]) -> str:
    runs = content["results"]["runs"]
    quiet = float(np.median([run["train_seconds"] for run in runs if run["kind"] == "quiet"]))
    rows, aims = [], []
    for kind in dict.fromkeys(run["kind"] for run in runs):
        name, of_kind = kind.replace("_", " "), [run for run in runs if run["kind"] == kind]
        marked = [run for run in of_kind if run["contention"]["state"] == "contended"]
        if kind in planted_neighbours.TARGETS:
            low, high = planted_neighbours.TARGETS[kind]
            missed = "" if low <= len(marked) / len(of_kind) <= high else " (**missed**)"
            aims.append(f"{'at least' if low else 'at most'} {100 * (low or high):.0f} % of {name}{missed}")
        rows.append({"neighbour": name, "runs": str(len(of_kind)), "marked as contended": str(len(marked))})
        rows[-1]["time of the marked runs"] = _relative_times(marked, quiet)
        rows[-1]["time of the others"] = _relative_times([run for run in of_kind if run not in marked], quiet)
    probes = [run["contention"]["probes"]["slowdown"]["memory"] for run in runs if run["kind"] == "memory"]
    return paragraphs(
        table(rows),
        sentences(
            f"Times are medians (smallest to largest), relative to the median of the quiet runs, {quiet:.0f} s.",
            f"Aim: {listed(aims)} are marked.",
            f"Beside the neighbour that reads memory, the median memory probe of a run took {min(probes):.2f} to "
            f"{max(probes):.2f} times as long as on the quiet machine.",
            f"{machine(content)}, commit {commit_of(content)}.",
        ),
    )


def _relative_times(runs: Sequence[Mapping[str, Any]], quiet: float) -> str:
    times = [run["train_seconds"] / quiet for run in runs]
    return f"{np.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else formats.NO_VALUE
