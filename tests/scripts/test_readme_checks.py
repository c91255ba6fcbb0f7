"""The texts about checks, from synthetic records; without a record, a text names the command."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import readme_numbers
import verdict_power as simulation
from readme_blocks import checks, savings
from readme_blocks.evidence import Evidence

SESSION = {
    "started": "2026-11-23T00:00:00",
    "git": {"commit": "a" * 40, "dirty": False},
    "device": "AMD EPYC",
    "threads": 1,
    "machine": {"id": "3f"},
    "versions": {"torch": "2.15.0"},
    "contention": {"state": "clear"},
}
KILL = {"rank": 0, "step": 10, "signum": 9, "processes": 2, "seconds": 3.5}
OLDER_EQUALITY = {
    "kills": [KILL],
    "fast_loss_differences": [0.0, 5e-8],
    "changed_loss_differences": [0.0, 3e-8],
}
EQUALITY = {
    "kills": [KILL | {"rank": 1, "from_step": 9}, KILL | {"signum": 15, "from_step": 11}],
    "fast_step_loss_differences": [0.0, 2e-7],
    "fast_loss_differences": [3e-8, 0.16],
    "changed_loss_differences": [0.0, 0.2],
}
RECORDS: dict[str, dict[str, Any]] = {
    "fuzz": {"seconds": 520.0, "kinds": 0, "readers": [{"reader": "runs", "inputs": 7, "slowest, s": 0.5}]},
    "chaos": {"kills": 20, "errors": [], "seconds": 9.0},
    "campaign_kills": {"kills": 10, "errors": ["x"], "seconds": 9.0},
    "ray_node_lost": {
        "nodes": 2,
        "cores": 2,
        "runs": 12,
        "errors": [],
        "ended": 4,
        "lost": {"b": 95, "c": 120},
        "places": {"a": [2], "b": [2, 1], "c": [2, 1]},
        "sessions": {"a": [0], "b": [0, 80], "c": [0, 100]},
        "seconds": 9.0,
    },
    "distributed_equality": {
        "steps": 40,
        "sizes": [1, 2],
        "runs": [
            {"task": "cifar10", "norm": norm, "model": ["model.width=0.05"], "errors": {"killed": []}} | found
            for norm, found in [("rms", OLDER_EQUALITY), ("bn", EQUALITY)]
        ],
    },
    "distributed_hang": {"errors": [], "seconds": 42.4},
    "preempted_sweep": {"runs": 12, "kills": 2, "errors": [], "seconds": 9.0},
    "chaos_sweep": {
        "faults": 3,
        "seconds": 120.0,
        "identical": 12,
        "causes": ["y"],
        "errors": [],
        "ends": {"SIGKILL": {"SIGKILL": 2}, "SIGTERM": {"exit 143": 1}},
    },
    "trainer_overhead": {
        "task": "cifar10",
        "steps": 10,
        "tokens_per_step": None,
        "seconds": {"trainer": [1.013] * 6, "plain loop": [1.0] * 6},
    },
    "compare_commits": {
        "before": "b" * 40,
        "after": "c" * 40,
        "task": "rnnsearch",
        "series": "rms",
        "threads": 2,
        "seconds": {"before, eager": [2.0] * 9, "after, eager": [2.0] * 9, "after, fused": [1.0] * 9},
    },
    "trivial_answers": {
        "dataset": "LAMBADA",
        "splits": {"valid": {"questions": 4256, "most_frequent": 0.799, "random": 0.9, "always_the_same": [0.9, 0.95]}},
    },
    "timing_power": {
        "trials": [
            {"kind": kind, "share": 0.03, "budget": 120.0, "estimates": [1.0] * 6, "low": low, "high": low + 0.02}
            | {"time_state": "clear"}
            for kind, low in (("equal", 0.99), ("slowed", 1.02))
        ],
        "summary": {kind: {"trials": 1, "right": 1, "low": 0.025, "high": 1.0} for kind in ("equal", "slowed")},
    },
    "timing_coverage": {
        "trials": 2000,
        "lines": [
            {"autocorrelation": 0.3, "rounds": 60, "spread": spread}
            | {"over_processes": over, "within_process": within}
            for spread, over, within in ((0.0, 0.951, 0.913), (0.01, 0.946, 0.669))
        ],
    },
    "data_at_size": {
        "subwords": "moses_bpe",
        "pairs": 10_000,
        "vocabulary": 5_000,
        "prepared": {"seconds": 31.2, "processor": 60.4, "mebibytes": 500.0},
        "cached": {"seconds": 4.25, "processor": 4.0, "mebibytes": 450.0},
    },
    "plan_accuracy": {
        "rows": [
            {"campaign": "quality_cifar10", "stage": "tune", "norm": norm, "runs": 3, "planned": 100.0, "took": took}
            for norm, took in (("ln", 110.0), ("rms", 90.0))
        ]
    },
    "planted_neighbours": {
        "runs": [
            {"kind": kind, "contention": {"state": state, "probes": {"slowdown": {"memory": 1.0 + i / 10}}}}
            | {"train_seconds": 20.0 + i}
            for i, (kind, state) in enumerate((("quiet", "clear"), ("same_core", "contended"), ("memory", "clear")))
        ],
    },
}
TEXTS = {
    "fuzz": ["In 520 s at commit aaaaaaa: no findings.", "| all | 7 |"],
    "preempted-sweep": ["12 runs got SIGUSR2, and 2 of them SIGKILL after that. No difference remained to the"],
    "ray-node-lost": [
        "12 small runs were done on 2 nodes with 2 cores each.\n",
        "Node 2 was removed when 4 of them had ended. It was training 2 runs, at steps 95 and 120.\n",
        "They were continued at steps 80 and 100, and ended on node 1.\nNo difference remained to the undisturbed s",
    ],
    "distributed-equality": [
        "with `rms` and `bn` were done for `cifar10`, on 1, 2 processes",
        "SIGKILL was sent 2 times, 1 of them to process 0, and SIGTERM, which stops all processes after the same step, "
        "one time. All processes had ended at most 4 s later.\n"
        "After 1 of the 1 SIGKILLs to other processes, the run continued from its last completed step.",
        "All models are far smaller than the demo's:\n\n- `cifar10`: `model.width=0.05`",
        "| `cifar10` | `rms` | - | 0 | 5e-08 | 3e-08 |",
        "| `cifar10` | `bn` | 2e-07 | 3e-08 | 2e-01 | 2e-01 |",
        "Above 1e-05 are 0 of 1 after one step, 0 of 2 in the first three steps with `reduce=fast`, 1 of 2 in whole "
        "runs with `reduce=fast` and 1 of 2 with changed weights.",
    ],
    "distributed-hang": ["The run ended after 42 s: process 0 after 12 s, with its last complete step saved"],
    "kills": ["after 20 kills of a run, no difference remained", "workers of a campaign, one difference remained"],
    "chaos-sweep": ["12 runs ended as in the undisturbed sweep, 1 first failed", "| SIGTERM | 1 | exit 143 (1) |"],
    "trainer-overhead": [
        "| trainer | 101.3 | \N{EN DASH} | 1.013 (1.013 to 1.013) |",
        "| 6 rounds of blocks of 10 steps, one process, not replicated | clear |",
        "No record of `language_model` is committed yet.",
    ],
    "commits": [
        "| bbbbbbb to ccccccc | 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) | [AMD EPYC (3f), 2 threads",
        "| interleaved, 9 rounds, one process, not replicated | clear |",
    ],
    "trivial-answers": [
        "Of the 4,256 questions of LAMBADA (valid)",
        "wrong answer to 79.9 %",
        "Always naming the same of the 2 entities is wrong in 90.00 to 95.00 %.",
    ],
    "timing-power": [
        "With equal models the interval contained the ratio 1 in 1 of 1 trials (2 to 100 % with 95 % confidence).",
        "for 3 % of each step's time it lay above 1 in 1 of 1 trials",
        "A trial has 6 processes of its own, which share 120 s. The median width of the intervals was 0.020.",
        "Time states of the trials: 2 clear.",
    ],
    "timing-coverage": [
        "| 0.3 | 60 | 1 % | 94.6 % | 66.9 % |",
        "in 94.6 to 95.1 % of them",
        "contains it in 91.3 to 91.3 % if processes do not differ",
    ],
    "data-at-size": [
        "| `moses_bpe` | 10,000 | 5,000 | 31 | 60 | 500 | 4.2 | 450 |",
        "Each size was measured once: on AMD EPYC (3f)",
    ],
    "plan-accuracy": [
        "| `quality_cifar10` | tune | 6 | 100 s | 100 s | +0 % | -10 to +10 % |",
        "of the kind AMD EPYC (3f). Trials were done on such a machine on 2026-11-23 by commit aaaaaaa, time state",
    ],
    "planted-neighbours": [
        "| same core | 1 | 1 | 1.05 (1.05 to 1.05) |",
        "relative to the median of the quiet runs, 20 s.\n",
        "Aim: at most 10 % of quiet, at least 90 % of same core and at least 90 % of memory (**missed**) are marked.\n",
        "the median memory probe of a run took 1.20 to 1.20 times as long as on the quiet machine.\n",
    ],
}


def write_checks(folder: Path) -> None:
    for name, results in RECORDS.items():
        path = folder / f"m/checks/{name}0/check.json"
        path.parent.mkdir(parents=True)
        readers = [{"read": 0, "refused": 0} | dict.fromkeys(checks.fuzzing.VERDICTS, 0)]
        if name == "fuzz":
            results = results | {"readers": [readers[0] | results["readers"][0]]}
        command = f"python scripts/{name}.py norm=rms"
        path.write_text(json.dumps({"check": name, "command": command, "session": SESSION, "results": results}))


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_check(tmp_path: Path, name: str) -> None:
    evidence = Evidence(tmp_path, tmp_path)
    assert "No record of this is committed yet. The command is `python scripts/" in readme_numbers.BLOCKS[name](
        evidence
    )
    write_checks(tmp_path)
    found = readme_numbers.BLOCKS[name](evidence)
    assert all(expected in found for expected in TEXTS[name]), found


@pytest.mark.parametrize("kind", ["equal", "slowed"])
def test_trials_of_one_kind_of_planted_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    both = RECORDS["timing_power"]
    trials = [trial for trial in both["trials"] if trial["kind"] == kind]
    found = {"trials": trials, "summary": {kind: both["summary"][kind]}}
    monkeypatch.setitem(RECORDS, "timing_power", found)
    write_checks(tmp_path)
    text = checks.timing_power(Evidence(tmp_path, tmp_path))
    assert text.count(" in 1 of 1 trials (2 to 100 % with 95 % confidence).") == 1
    assert text.startswith({"equal": "With equal models the", "slowed": "With a model that idles for 3 %"}[kind])
    assert "Time states of the trials: 1 clear." in text


def test_tokens_per_second_of_language_models(tmp_path: Path) -> None:
    results = {"task": "language_model", "steps": 10, "tokens_per_step": 2048}
    results["seconds"] = {"trainer, eager": [2.0] * 6, "trainer, fused": [1.0] * 6, "plain loop": [1.0] * 6}
    path = tmp_path / "m/checks/trainer_overhead0/check.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"command": "trainer_overhead.py a", "session": SESSION, "results": results}))
    text = checks.trainer_overhead(Evidence(tmp_path, tmp_path))
    assert "| `a` | trainer, eager | 200.0 | 10,240 | 2.000 (2.000 to 2.000) |" in text
    assert "| `a` | trainer, fused | 100.0 | 20,480 | 1.000 (1.000 to 1.000) |" in text
    assert text.endswith(f"The command is `{checks.OVERHEAD}`.")


def test_the_models_of_several_processes_may_be_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORDS["distributed_equality"], "scale", "demo")
    write_checks(tmp_path)
    found = readme_numbers.BLOCKS["distributed-equality"](Evidence(tmp_path, tmp_path))
    assert "These keys differ from `scale=demo`:\n\n- `cifar10`: `model.width=0.05`" in found


def test_the_newest_record_of_each_machine_counts(tmp_path: Path) -> None:
    write_checks(tmp_path)
    old, new = (tmp_path / f"m/checks/fuzz{number}" for number in range(2))
    shutil.copytree(old, new)
    content = (new / "check.json").read_text()
    (new / "check.json").write_text(content.replace("2026-11-23", "2026-11-24").replace("520.0", "521.0"))
    assert checks.fuzz(Evidence(tmp_path, tmp_path)).startswith("In 521 s")


def test_an_earlier_record_of_a_lost_node(tmp_path: Path) -> None:
    path = tmp_path / "m/checks/ray_node_lost0/check.json"
    path.parent.mkdir(parents=True)
    results = {"nodes": 2, "errors": ["x"], "sessions": {"a": [0], "b": [0, 36], "c": [0, 44]}}
    path.write_text(json.dumps({"session": SESSION, "results": results}))
    assert checks.ray_node_lost(Evidence(tmp_path, tmp_path)) == (
        "At commit aaaaaaa, one of 2 nodes was removed while both trained.\n"
        "Of 3 runs, 2 were interrupted by this and continued at step 36 and 44.\n"
        "One difference remained to the undisturbed campaign."
    )


def test_the_tables_of_simulated_campaigns_come_from_their_record(tmp_path: Path) -> None:
    norms = {"task": "cifar10", "a": "rms", "b": "ln", "margin": 1.5, "unit": "points", "half": [1.23, 2.0], "runs": 14}
    tuned = [
        norms | {"rule": "octaves", "coverage": 0.5, "wrong": [0.12, 0.38, 0.06]},
        norms | {"rule": "quarters", "coverage": 0.6, "wrong": [0.0, 0.02, 0.05]},
        norms | {"rule": "quarters", "coverage": 0.9, "wrong": [0.0, 0.066, 0.05], "a": "prms", "b": "rms"},
    ]
    wrong, supported = (dict.fromkeys(simulation.TESTS, shares) for shares in ([0.05, 0, 0, 0], [0.02, 0.25, 0.06, 1]))
    known = [{"case": "more spread", "seeds": 9.04, "wrong": wrong, "supported": supported}]
    path = tmp_path / "computed/checks/verdict_power0/check.json"
    path.parent.mkdir(parents=True)
    results = {"campaigns": 900, "tuned": tuned, "known": known}
    path.write_text(json.dumps({"session": SESSION, "results": results}))
    found = checks.verdict_rules(Evidence(tmp_path, tmp_path)).splitlines()
    assert found[4].endswith(" | pRMSNorm, RMSNorm | 1.5 points | quarters | 90.0 | 0.0 / 6.6 / 5.0 | 1.2, 2 | 14.0 |")
    assert found[8].endswith(" | 5.0 / 0.0 / 0.0 / 0.0 | 2.0 / 25.0 | 2.0 / 25.0 | 25.0 / 6.0 / 100.0 |")
    assert found[10:] == [
        "Each share is from 900 campaigns.",
        "Its standard error is 1.0 percentage points near 90 %, and 0.7 near 5 %.",
        "With rates tuned by octaves, the coverage is 50.0 to 50.0 %.",
        "At most 38.0 % of the campaigns of a cell have a wrong verdict.",
        "With rates tuned by quarters, the coverage is 60.0 to 90.0 %.",
        "At most 6.6 % of the campaigns of a cell have a wrong verdict.",
        "The target for quarters, at least 88 %, is **missed** on `cifar10` (RMSNorm, LayerNorm).",
        "That for wrong verdicts, at most 6.5 %, is **missed** on `cifar10` (pRMSNorm, RMSNorm).",
        "With known rates at most 5.0 % of a cell have a wrong verdict, and this target is met.",
    ]


def test_a_record_of_several_processes(tmp_path: Path) -> None:
    """Six processes of up to four series each, in groups that share the reference; a pair may be in none together."""
    series = [("ln", ["ln", "rms"]), ("fused", ["ln", "rms+impl=fused", "ln+impl=fused"])]
    times = {"ln": 1.0, "rms": 0.9, "rms+impl=fused": 0.5, "ln+impl=fused": 0.52}
    noise = np.random.default_rng(0)
    processes = [
        {
            "session": SESSION | {"machine": {"id": "x", "name": "AMD EPYC 1"}},
            "steps_per_block": 3,
            "data_seconds": 0.0,
            "series": names,
            "seconds": {name: (times[name] * np.exp(noise.normal(0, 0.01, 25))).tolist() for name in names},
        }
        for _ in range(6)
        for _, names in series
    ]
    stored = {
        "format": 2,
        "task": "cifar10",
        "scale": "small",
        "setting": "small",
        "kind": "steps",
        "reference": "ln",
        "stopped": "budget spent",
        "dataset": {"builtin": False},
        "processes": processes,
        "series": [
            {"series": name, "impl": "fused" if "fused" in name else "eager", "parts": {}, "peak_bytes": None}
            for name in times
        ],
    }
    path = tmp_path / "m/cifar10/small/timing/steps0/timing.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(stored))
    (group,) = savings.groups(Evidence(tmp_path, tmp_path))
    assert group.processes == {"cifar10": 6}
    assert "Each value is the mean of 6 processes (t-intervals)." in savings.replication(group)
    record = group.records["cifar10"]
    for one, other in (("rms", "ln"), ("rms+impl=fused", "ln+impl=fused"), ("rms+impl=fused", "rms")):
        found = savings.ratio(record, one, other)
        assert found is not None
        assert found.ratio == pytest.approx(times[one] / times[other], rel=0.01)
        assert found.low < found.ratio < found.high
        assert math.log(found.high / found.low) < 0.05
