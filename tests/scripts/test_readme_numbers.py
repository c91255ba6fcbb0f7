"""The marked blocks of the documents are as the committed records say, and an edit by hand is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import readme_numbers
from helpers import campaigns
from helpers.records import make_row, write_run, write_timing
from readme_blocks import agreement, campaign_costs, gains, quality, savings, text, verdicts
from readme_blocks.evidence import Evidence

from rmsexp.records import record

PAGE = "before\n<!-- numbers: one -->\nfirst 1 %\n<!-- end -->\nbetween\n<!-- numbers: two -->\na\nb\n<!-- end -->\n"
CHECKS = "readme_blocks.checks"
TEXTS = {"one": lambda _: "first 1 %", "two": lambda _: "a\nb"}


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_blocks_of_a_page_are_as_the_records_say(page: Path) -> None:
    evidence = Evidence(readme_numbers.REFERENCE, page.parent)
    after = readme_numbers.updated(page.read_text(), evidence, readme_numbers.BLOCKS)
    assert not readme_numbers.differences(page, after), f"run {readme_numbers.COMMAND}"


@pytest.mark.parametrize("name", [name for name, block in readme_numbers.BLOCKS.items() if block.__module__ == CHECKS])
def test_the_text_of_a_check_without_a_record_names_its_command(name: str, tmp_path: Path) -> None:
    assert "is committed yet. The command is `" in readme_numbers.BLOCKS[name](Evidence(tmp_path, tmp_path))


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
