"""The marked blocks of the documents are as the committed records say, and an edit by hand is found."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import readme_numbers
from helpers import campaigns
from helpers.records import make_row, write_run, write_timing
from readme_blocks import agreement, baselines, campaign_costs, gains, layers, quality, savings, text, verdicts
from readme_blocks.evidence import Evidence

from rmsexp.records import record
from rmsexp.records.frames import timing_records

PAGE = "before\n<!-- numbers: one -->\nfirst 1 %\n<!-- end -->\nbetween\n<!-- numbers: two -->\na\nb\n<!-- end -->\n"
TEXTS = {"one": lambda _: "first 1 %", "two": lambda _: "a\nb"}


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_blocks_of_a_page_are_as_the_records_say(page: Path) -> None:
    evidence = Evidence(readme_numbers.REFERENCE, page.parent)
    after = readme_numbers.updated(page.read_text(), evidence, readme_numbers.BLOCKS)
    assert not readme_numbers.differences(page, after), f"run {readme_numbers.COMMAND}"


def test_every_text_has_a_block() -> None:
    used = {block.name for page in readme_numbers.PAGES for block in readme_numbers.blocks(page.read_text())}
    assert used == set(readme_numbers.BLOCKS)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("1 %", "2 %"), ["3 block one: has 'first 2 %', the records say 'first 1 %'"]),
        (("first 1 %\n", ""), ["3 block one: has 'nothing', the records say 'first 1 %'"]),
        (("b\n<", "b\nc\n<"), ["9 block two: has 'c', the records say 'nothing'"]),
        (("before", "any text with 3 %"), []),
    ],
)
def test_an_edit_by_hand_is_found(tmp_path: Path, edit: tuple[str, str], expected: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(*edit))
    after = readme_numbers.updated(page.read_text(), Evidence(tmp_path, tmp_path), TEXTS)
    assert readme_numbers.differences(page, after) == [f"page.md:{line}" for line in expected]
    page.write_text(after)
    assert readme_numbers.differences(page, after) == []


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- numbers: three -->\n<!-- end -->", "line 1: no block is named three; known: one, two"),
        ("<!-- numbers: one -->\n", "line 1: the block one has no <!-- end -->"),
        ("\n<!-- end -->\n", "line 2: <!-- end --> without a beginning before it"),
        ("<!-- numbers: one -->\n<!-- numbers: two -->\n<!-- end -->", "line 2: <!-- numbers: two --> without"),
    ],
)
def test_malformed_blocks_are_refused(tmp_path: Path, page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        readme_numbers.updated(page, Evidence(tmp_path, tmp_path), TEXTS)


def copy_timing(source: str, target: Path) -> Path:
    folder = readme_numbers.REFERENCE / source
    target.mkdir(parents=True)
    shutil.copy(folder / "timing.json", target)
    return target / "timing.json"


def write_records_of_one_process(folder: Path, numbers: Sequence[int]) -> None:
    """Write timings of RNNSearch in one process each: of one code, and a newest one of another with 17 rounds."""
    times = {"ln": 1.0, "rms": 0.8}
    for number in numbers:
        write_timing(folder, times, task="rnnsearch", setting="small", number=number, rounds=31)
    times |= {"ln+impl=fused": 0.5, "rms+impl=fused": 0.4}
    write_timing(folder, times, task="rnnsearch", setting="small", number=4, rounds=17, session={"code": "other"})


def test_a_record_with_enough_rounds_precedes_a_newer_one(tmp_path: Path) -> None:
    write_records_of_one_process(tmp_path / "m", [3])
    (group,) = savings.groups(Evidence(tmp_path, tmp_path))
    assert Path(group.records["rnnsearch"]["folder"].iloc[0]).name == "steps3"
    (fused,) = savings.groups(Evidence(tmp_path, tmp_path), needed="rms+impl=fused")
    assert Path(fused.records["rnnsearch"]["folder"].iloc[0]).name == "steps4"


def test_records_of_the_same_code_are_pooled_as_in_reports(tmp_path: Path) -> None:
    write_records_of_one_process(tmp_path / "m", [2, 3])
    (group,) = savings.groups(Evidence(tmp_path, tmp_path))
    assert (group.processes, group.rounds) == ({"rnnsearch": 2}, {"rnnsearch": 62})
    assert "Each value is the mean of 2 processes" in savings.replication(group)
    assert "62 rounds in 2 processes, at least 31 in each: [steps2](" in savings.timing_page(
        Evidence(tmp_path, tmp_path)
    )


@pytest.mark.parametrize(("again", "expected"), [(0.802, "yes"), (0.9, "no: RMSNorm")])
def test_two_records_made_apart_agree_if_their_intervals_overlap(tmp_path: Path, again: float, expected: str) -> None:
    evidence = Evidence(tmp_path, tmp_path)
    assert agreement.of_tasks(Evidence(tmp_path / "none", tmp_path)).startswith("No record of two timings of one task")
    norms = {"ln": 1.0, "prms": [0.8, 0.82], "ln+impl=fused": 0.5, "rms+impl=fused": [0.4, 0.401]}
    write_timing(tmp_path / "m", norms | {"rms": [0.8, 0.801, 0.802]}, setting="small")
    write_timing(tmp_path / "m", norms | {"rms": [again, again + 0.001, again - 0.001]}, setting="small", number=1)
    found = agreement.of_tasks(evidence)
    assert f"they agree on {1 + (expected == 'yes')} of 2." in found
    assert "[2026-11-20 03:00, 3 processes, clear](" in found
    eager, fused = found.splitlines()[-2:]
    assert eager.endswith(f"| {expected} |")
    assert fused.startswith("| `cifar10`, small, fused | AMD EPYC, 1 thread, torch 2.15.0 | ")
    assert fused.endswith("| yes |")


def test_records_made_at_once_by_other_code_or_in_one_process_are_no_replication(tmp_path: Path) -> None:
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": [0.8, 0.82]}, setting="small")
    soon = {"started": "2026-11-20T03:59:00+00:00"}
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": [0.8, 0.82]}, setting="small", number=1, session=soon)
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": 0.8}, setting="small", number=2)
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": [0.8, 0.82]}, setting="small", number=3, session={"code": "other"})
    write_timing(tmp_path / "m", {"ln": 1.0, "prms": [0.8, 0.82]}, setting="small", number=4)
    assert agreement.of_tasks(Evidence(tmp_path, tmp_path)).startswith("No record of")


def test_machine_method_and_doubt_of_timings_are_named(tmp_path: Path) -> None:
    session = {"machine": {"id": "3f", "name": "AMD EPYC"}}
    for task, state in (("cifar10", "clear"), ("rnnsearch", "contended")):
        times = {"ln": 1.0, "rms": 0.8, "prms": 0.8, "ln+impl=fused": 0.5, "rms+impl=fused": 0.4}
        write_timing(tmp_path / "m", times, task=task, setting="small", state=state, session=session)
    evidence = Evidence(tmp_path, tmp_path)
    assert "unfused, `scale=small`, one thread of AMD EPYC (3f), [interleaved]" in savings.readme(evidence)
    found = savings.readme(evidence)
    assert "time state [clear and contended](docs/timing.md#what-contended-means)" in found
    for block in (savings.timing_page, savings.fused):
        found = block(evidence)
        assert "**AMD EPYC (3f), one thread, " in found
        assert "Timed interleaved: a block has 3 counted steps" in found
        assert "The time state is contended on `rnnsearch`, where other work may have slowed the steps." in found


def test_fused_savings_come_from_the_records_that_are_best_for_them(tmp_path: Path) -> None:
    """The best record of eager norms has no fused ones. How the fused norms were timed is said where it differs."""
    eager, fused = {"ln": 1.0, "rms": [0.8, 0.81]}, {"ln": 1.0, "ln+impl=fused": 0.5, "rms+impl=fused": 0.4}
    write_timing(tmp_path / "without/m", eager, setting="small")
    assert "with [fused norms]" not in savings.readme(Evidence(tmp_path / "without", tmp_path))
    write_timing(tmp_path / "with/m", eager, setting="small")
    write_timing(tmp_path / "with/m", fused, setting="small", number=1, state="contended")
    found = savings.readme(Evidence(tmp_path / "with", tmp_path))
    assert "| 20.5 % | 20.0 % (20.0 to 20.0 %) |" in found
    assert f"Each value is from {timing_records.replication(1)}:" in found
    assert "Fused: the time state is contended on `cifar10`" in found


def test_the_cost_of_layernorm_and_the_range_over_machines(tmp_path: Path) -> None:
    times = {"ln": 1.0, "rms": [0.8, 0.801], "none": [0.4, 0.401]}
    fused = {"ln+impl=fused": 0.5, "rms+impl=fused": [0.49, 0.4901], "none+impl=fused": [0.47, 0.4701]}
    write_timing(tmp_path / "m", times | fused, setting="small")
    other = {"machine": {"id": "4a", "name": "Another"}}
    write_timing(tmp_path / "n", times | {"rms": [0.7, 0.701]}, setting="small", session=other)
    found = savings.readme(Evidence(tmp_path, tmp_path))
    assert "| 19.9 to 29.9 % | 20.5 % |" in found
    assert "On all machines: [lowest to highest](docs/timing.md#results) of 2 measurements on 2 machines." in found
    assert "Unfused, LayerNorm takes 60 to 60 % of a step, of which RMSNorm saves 33 to 50 % (median 42 %)." in found
    assert "Fused, LayerNorm takes 6 to 6 % of a step, of which RMSNorm saves 33 to 33 % (median 33 %)." in found


def test_the_answer_counts_the_tasks(tmp_path: Path) -> None:
    for campaign in campaigns.three()[:2]:
        campaign.write(tmp_path / "m")
    found = verdicts.answer(Evidence(tmp_path, tmp_path))
    assert found.startswith(
        "Small models, short runs: RMSNorm equals LayerNorm within a margin on 1 of 2 tasks; open: "
    )


def test_method_and_time_state_of_a_benchmark_are_named(tmp_path: Path) -> None:
    target = tmp_path / "m/bench/recurrences0/bench.json"
    target.parent.mkdir(parents=True)
    stored = (readme_numbers.REFERENCE / "amd-epyc-2-cores/bench/recurrences0/bench.json").read_text()
    target.write_text(stored.replace('"state": "clear"', '"state": "contended"', 1))
    found = layers.recurrences(Evidence(tmp_path, tmp_path))
    assert "rounds, one process, not replicated; intervals of fewer than 20 rounds are less reliable." in found
    assert "Time state: clear, except gru-50x80x512x1024, forward + backward (contended)." in found


def test_a_task_without_numbers_of_the_paper_has_a_row(tmp_path: Path) -> None:
    for task in ("cifar10", "language_model"):
        path = copy_timing("amd-epyc-2-cores/cifar10/small/timing/steps1", tmp_path / f"m/{task}/small/timing/steps0")
        path.write_text(path.read_text().replace('"task": "cifar10"', f'"task": "{task}"'))
    evidence = Evidence(tmp_path, tmp_path)
    for block in (savings.readme, savings.timing_page):
        rows = [line for line in block(evidence).splitlines() if line.startswith("| `language_model`")]
        assert "| \N{EN DASH} |" in rows[0]


def test_machines_and_threads_have_tables_of_their_own(tmp_path: Path) -> None:
    for place, number in (("a", 0), ("b", 0), ("b", 1)):
        path = copy_timing(
            "amd-epyc-2-cores/cifar10/small/timing/steps1", tmp_path / place / f"cifar10/small/timing/steps{number}"
        )
        content = path.read_text().replace("2026-11-", "2026-10-") if place == "b" else path.read_text()
        path.write_text(content.replace('"threads": 1', '"threads": 2') if number else content)
    found = savings.groups(Evidence(tmp_path, tmp_path))
    assert sorted((group.place, group.threads) for group in found) == [("a", 1), ("b", 1), ("b", 2)]
    assert savings.timing_page(Evidence(tmp_path, tmp_path)).count("**AMD EPYC") == 3


def test_settings_of_a_task_on_a_gpu_have_tables_of_their_own(tmp_path: Path) -> None:
    for setting in ("paper", "paper+data.name=shapes"):
        write_timing(tmp_path / "m", {"ln": 1.0, "rms": 0.9}, setting=setting, session={"device_type": "cuda"})
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": 0.9}, task="rnnsearch", setting="paper")
    found = savings.gpu_page(Evidence(tmp_path, tmp_path))
    assert found.count("| `cifar10`") == 2
    assert "rnnsearch" not in found


def test_a_ratio_to_another_series_is_paired(tmp_path: Path) -> None:
    times = {"ln": 1.0, "ln+impl=fused": [0.5, 0.52], "rms+impl=fused": [0.4, 0.41]}
    write_timing(tmp_path / "m", times, setting="small")
    (group,) = savings.groups(Evidence(tmp_path, tmp_path), needed="rms+impl=fused")
    record = group.records["cifar10"]
    both = savings.ratio(record, "rms+impl=fused", "ln+impl=fused")
    rms, ln = (savings.ratio(record, series) for series in ("rms+impl=fused", "ln+impl=fused"))
    assert both is not None
    assert rms is not None
    assert ln is not None
    assert both.ratio == pytest.approx(rms.ratio / ln.ratio, rel=0.01)
    assert both.low < both.ratio < both.high
    assert savings.ratio(record, "wn") is None


def test_verdicts_of_decided_campaigns_are_a_table(tmp_path: Path) -> None:
    for block in (verdicts.readme, verdicts.whole):
        assert block(Evidence(tmp_path / "none", tmp_path)) == verdicts.NONE
    first, second, unfinished = campaigns.three()
    unfinished.write(tmp_path / "one")
    evidence = Evidence(tmp_path / "one", tmp_path)
    waiting = sorted(path.stem for path in verdicts.CAMPAIGNS.glob("quality_*.yaml"))
    assert verdicts.readme(evidence) == f"Not decided yet: {len(waiting)} campaigns."
    waiting.remove("quality_rnnsearch")
    assert verdicts.whole(evidence) == (
        f"Not decided yet: `quality_rnnsearch` ({evidence.campaigns[0].undecided}). Not begun: {text.tasks(waiting)}."
    )
    for each in (first, second, unfinished):
        each.write(tmp_path / "three")
    lines = verdicts.readme(Evidence(tmp_path / "three", tmp_path)).splitlines()
    assert lines[0] == "| claim | `cifar10` | `order_embedding` |"
    assert lines[2] == "| RMSNorm equals LayerNorm | supported | inconclusive |"
    links = f"[conditions]({verdicts.CONDITIONS}); [all claims, with intervals]({verdicts.WHOLE})"
    start = f"`scale=small` ({links})."
    assert lines[-1].startswith(f"{start} *Equals*: within a margin.")
    assert " Not decided yet: " in lines[-1]


def test_all_verdicts_have_their_differences(tmp_path: Path) -> None:
    """Those of a loss, in nats, have four decimals."""
    level = {"none": 2.09, "ln": 2.0312, "rms": 2.0}
    of_loss = {"name": "quality_language_model", "task": "language_model", "metric": "loss", "level": level}
    campaigns.Campaign(**of_loss, claims=[campaigns.EQUAL | {"margin": 0.014}]).write(tmp_path)
    campaigns.Campaign().write(tmp_path)
    lines = verdicts.whole(Evidence(tmp_path, tmp_path)).splitlines()
    number = r"[+-]\d+\.\d{{{}}}"
    row = r"\| RMSNorm equals LayerNorm \| {} \({}\) \| [\w, *]+ \| {} \({} to {}\) {} \| . \| {} \| .* \| 8 \|"
    for task, name, decimals, unit, margin in (
        ("cifar10", "quality_cifar10", 2, "points", "1.5 points"),
        ("language_model", "quality_language_model", 4, "nats", "0.014 nats"),
    ):
        pattern = row.format(task, name, *[number.format(decimals)] * 3, unit, margin)
        assert any(re.fullmatch(pattern, line) for line in lines), pattern
    assert lines[-1].startswith("Differences of mean scores")


def test_runs_and_seconds_of_campaigns(tmp_path: Path) -> None:
    """A run takes 110 s. The one that diverged halfway counts in the total, and not in the mean."""
    assert campaign_costs.runs_and_seconds(Evidence(tmp_path / "none", tmp_path)) == verdicts.NONE
    campaigns.Campaign(diverged={("none", 0)}, grid=(0.002, 0.004), seeds=2, needed=2, rules=1).write(tmp_path)
    lines = campaign_costs.runs_and_seconds(Evidence(tmp_path, tmp_path)).splitlines()
    assert lines[2] == "| `quality_cifar10` | 0 + 18 + 6 = 24 | 0 + 24 + 6 = 30 | 0.9 |"
    (of_machine,) = [line for line in lines if "AMD EPYC, one thread" in line]
    assert of_machine.startswith("| `quality_cifar10` | AMD EPYC, one thread | 24 | 110 s |")
    assert of_machine.endswith(" contended |")


def test_gains_in_the_last_fifth_of_the_steps(tmp_path: Path) -> None:
    assert gains.last_fifth(Evidence(tmp_path / "none", tmp_path)) == verdicts.NONE
    campaign = campaigns.Campaign(diverged={("rms", 0)})
    campaign.write(tmp_path)
    (row,) = [line for line in gains.last_fifth(Evidence(tmp_path, tmp_path)).splitlines() if "quality_cifar10" in line]
    assert row.startswith("| `quality_cifar10` | 1.5 points | ")
    for norm in ("ln", "rms"):
        jobs = [{"norm": norm, "rate": campaign.best[norm], "seed": seed} for seed in range(norm == "rms", 8)]
        found = [campaign.value(job, campaigns.POINTS[-5], "interim") for job in jobs]
        ends = [campaign.value(job, campaigns.POINTS[-1], "interim") for job in jobs]
        fallen = [100 * (before - after) for before, after in zip(found, ends, strict=True)]
        assert f"| {np.mean(fallen):+.2f} ({max(fallen):+.2f}) |" in row


def test_the_best_rate_of_each_norm_and_the_drop_of_beta1(tmp_path: Path) -> None:
    """Rates with one seed are not compared with those of three. WeightNorm's rows are in the order of its rates."""
    assert baselines.trained(Evidence(tmp_path / "none", tmp_path)) == text.not_recorded(baselines.COMMAND)
    level, best = {"none": 24.0, "wn": 30.0}, {"none": 0.002, "wn": 0.004}
    campaigns.Campaign(level=level, best=best, grid=(0.001, 0.002, 0.004), claims=[], rules=1).write(
        tmp_path / "quality"
    )
    lines = baselines.trained(Evidence(tmp_path, tmp_path)).splitlines()
    assert lines[0] == "| norm | `cifar10`: valid error (%) |"
    assert [line.split("|")[1:3] for line in lines[2:4]] == [
        [" no norm ", " 23.8 at 0.002 (3 seeds; 4 rates tried) "],
        [" WeightNorm ", " 29.8 at 0.004 (3 seeds; 4 rates tried) "],
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "finished at step" in line]
    three = ("1000", "1001", "1002")
    of_three = ([rate, seed] for rate in ("0.002", "0.004") for seed in three)
    assert [row[:2] for row in rows] == [["0.001", "1000"], *of_three, ["0.008", "1000"]]
    assert rows[0][2:] == ["34.2 %", "33.8 %", "32.9 %", "finished at step 1000"]


def test_a_row_per_norm_of_the_language_model(tmp_path: Path) -> None:
    assert quality.language_model(Evidence(tmp_path, tmp_path)) == text.not_recorded(quality.LANGUAGE_MODEL)
    notes = {"unigram entropy": "entropy of single tokens"}
    for series, seed, status in [("rms", 0, "finished"), ("rms", 1, "finished"), ("none", 0, "diverged")]:
        described = {"task": "language_model", "setting": "small", "notes": notes, "status": status}
        folder = write_run(tmp_path / "m", series, seed, steps=604, **described)
        end = make_row(604, 1.5 + seed / 100, "test") | {"bits_per_byte": 2.2 + seed / 50}
        record.RunFolder(folder).append([end])
    lines = quality.language_model(Evidence(tmp_path, tmp_path)).splitlines()
    assert lines[0] == "| norm | nats per token at step 604 | bits per byte | finished runs |"
    assert lines[2:4] == [
        "| no norm | \N{EN DASH} | \N{EN DASH} | 0 of 1 |",
        "| RMSNorm | 1.5050 (1.5000 to 1.5100) | 2.2100 (2.2000 to 2.2200) | 2 of 2 |",
    ]
    assert lines[-1] == "entropy of single tokens."


def test_a_run_that_did_not_finish_has_no_value(tmp_path: Path) -> None:
    write_run(tmp_path / "m", seed=0, setting="small")
    write_run(tmp_path / "m", seed=1, setting="small", steps=100, status="diverged")
    before_evaluation = write_run(tmp_path / "m", seed=2, setting="small", steps=0, status="diverged")
    (before_evaluation / record.METRICS).write_text("")
    evidence = Evidence(tmp_path, tmp_path)
    runs = quality.of_task(evidence, "cifar10")
    assert runs is not None
    assert list(runs.values("rms", "error", "test")) == [0]
    row = quality.cifar10(evidence).splitlines()[-1].split(" | ")
    assert [len(re.findall("%", cell)) for cell in row] == [0, 1, 2]  # the value at the end, and the lowest of each run


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (([0, 1, 2], [1, 2, 3]), "RMSNorm minus LayerNorm is -12.5 points (95 % interval ± 0)."),
        (([0, 1], [1, 2]), "RMSNorm minus LayerNorm is -12.5 points."),
        (([0], [1]), ""),
        (([0], [0]), ""),  # a single seed says nothing
    ],
)
def test_norms_are_compared_at_the_seeds_that_both_have(
    tmp_path: Path, seeds: tuple[list[int], list[int]], expected: str
) -> None:
    """LayerNorm's error is 12.5 points above RMSNorm's at each seed, and the seeds differ by as much."""
    for series, level, chosen in (("ln", 0.25, seeds[0]), ("rms", 0.125, seeds[1])):
        for seed in chosen:
            folder = write_run(tmp_path / "m", series, seed, setting="small", steps=100)
            row = make_row(100, 0.0, "test") | {"error": level + 0.125 * seed}
            record.RunFolder(folder).append([row])
    last = quality.cifar10(Evidence(tmp_path, tmp_path)).splitlines()[-1]
    assert last == expected or (not expected and last.startswith("|"))


def test_the_command_is_named_only_where_it_would_change_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("1 %", "2 %"))
    for name, value in (("PAGES", [page]), ("REFERENCE", tmp_path), ("BLOCKS", TEXTS)):
        monkeypatch.setattr(readme_numbers, name, value)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["readme_numbers.py", *words])
        return readme_numbers.main(), capsys.readouterr().out

    line = "page.md:3 block one: has 'first 2 %', the records say 'first 1 %'"
    assert run("--check") == (1, f"{line}\nnext    python scripts/readme_numbers.py\n")
    assert run() == (0, f"{line}\n")
    assert run() == (0, "all blocks are as the records say\n")


def test_readers_that_give_every_question_the_same_answer_are_named() -> None:
    evidence = Evidence(readme_numbers.REFERENCE, readme_numbers.ROOT)
    of_two_entities = 1 - np.array([580, 295]) / 4256  # questions that they answer
    text = quality.same_answers(evidence, "valid", of_two_entities.tolist())
    assert "the same answer: no norm at steps 250, 500 and 1000; " in text
    assert "exactly" not in quality.same_answers(evidence, "valid", [0.5])


def test_lists_and_plurals() -> None:
    assert [text.listed("abc"[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert [text.plural(count, noun) for count, noun in ((1, "process"), (6, "process"), (2, "seed"))] == [
        "one process",
        "6 processes",
        "2 seeds",
    ]


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_measured_numbers_of_a_page_are_in_blocks(page: Path) -> None:
    assert not readme_numbers.unsourced(page, readme_numbers.constants(page))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RMSNorm saves 12.3 % on one task", ["12.3 %"]),
        (
            "it held in 92 of the 100 trials, 1,204.5 per second, 5 % and 3e-5",
            ["92 of the 100", "1,204.5", "5 %", "3e-5"],
        ),
        ("with torch 2.15.0, `0.5`, [link](a/0.5), in 600 steps, Table 10", []),
        ("```sh\nmake 0.5\n```\n<!-- numbers: one -->\n0.5 %\n<!-- end -->", []),
    ],
)
def test_measured_numbers_outside_of_blocks_are_found(tmp_path: Path, text: str, expected: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"\n{text}\n")
    found = readme_numbers.unsourced(page, set())
    assert found == [
        f"page.md:2 {number} is neither in a block nor in constants.yaml; measured numbers need a block"
        for number in expected
    ]
    assert readme_numbers.unsourced(page, set(expected)) == []


def test_constants_are_used() -> None:
    stated = readme_numbers.read_yaml(readme_numbers.CONSTANTS)
    for page in readme_numbers.PAGES:
        used = set(readme_numbers.NUMBER.findall(readme_numbers.OTHER.sub("", page.read_text())))
        assert set(stated.get(page.relative_to(readme_numbers.ROOT).as_posix(), [])) <= used, page
