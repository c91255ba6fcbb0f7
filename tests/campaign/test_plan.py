"""Which runs the rules ask for, and the file ``campaign.json``."""

import fcntl
import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.campaigns import BETTER, EQUAL, ask, do, write_run
from scipy import stats

from rmsexp.campaign import campaign_file, question, remarks
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.commands import summary
from rmsexp.compare import load
from rmsexp.report import campaign_report
from rmsexp.report.plots import style
from rmsexp.report.plots import verdicts as panels
from rmsexp.report.tables import verdicts
from rmsexp.rules import seeds

pytestmark = pytest.mark.usefixtures("quick_folders")


def value(job: Job) -> float:
    """Return a score that is best at the middle rate, with some spread over seeds."""
    return 20 - abs(math.log2(job.rate / 2e-3)) + 0.01 * (job.seed % 7) * len(job.norm)


def test_stages_follow_each_other(tmp_path: Path) -> None:
    """All norms at all rates with one seed, then the two best rates with two more, then final runs at the best one."""
    asked = ask(tmp_path)
    first, second, third = do(asked, value)
    assert [(job.stage, job.norm, job.rate, job.seed) for job in first] == [
        ("tune", norm, rate, 1000) for norm in ("ln", "rms") for rate in (1e-3, 2e-3, 4e-3)
    ]
    assert {(job.stage, job.norm, job.rate, job.seed) for job in second} == {
        ("tune", norm, rate, seed) for norm in ("ln", "rms") for rate in (1e-3, 2e-3) for seed in (1001, 1002)
    }
    assert {(job.stage, job.norm, job.rate, job.seed) for job in third} == {
        ("final", norm, 2e-3, seed) for norm in ("ln", "rms") for seed in (0, 1)
    }
    for job in [*first, *second, *third]:
        assert ("scored" if job.stage == "final" else "validation") in job.folder


def test_the_plan_is_a_function_of_file_and_records(tmp_path: Path) -> None:
    """Deleting campaign.json loses nothing. The plan does not depend on the order in which runs end."""
    asked = ask(tmp_path)
    do(asked, value)
    path = asked.folder / campaign_file.FILE
    written = path.read_text()
    path.unlink()
    campaign = asked.update()
    assert path.read_text() == written
    assert campaign_results.load(path) == campaign
    assert campaign.command == ("tiny", "--config-dir", asked.config_dir)
    again = ask(tmp_path / "again")
    todo = list(again.update().jobs)
    while todo:  # one at a time, the last first
        write_run(again, todo[-1], value(todo[-1]))
        current = again.update()
        todo = current.left
    assert set(current.jobs) == set(campaign.jobs)
    assert current.seeds == campaign.seeds


@pytest.mark.parametrize(("spread", "needed"), [(0.1, 2), (20.0, 4)])
def test_the_spread_at_the_first_look_decides_the_number_of_seeds(spread: float, needed: int, tmp_path: Path) -> None:
    asked = ask(tmp_path)
    wide = ("final", "rms")
    rounds = do(asked, lambda job: value(job) + spread * (-1) ** job.seed * ((job.stage, job.norm) == wide))
    campaign = asked.update()
    assert campaign.seeds.needed == needed
    assert [len(jobs) for jobs in rounds[2:]] == ([4] if needed == 2 else [4, 4])
    assert campaign.final_seeds == list(range(needed))


def test_norms_have_the_seeds_that_their_claims_need(tmp_path: Path) -> None:
    claims = [EQUAL, BETTER | {"seeds": 2}]
    asked = ask(tmp_path, norms=["none", "ln", "rms"], final={"min_seeds": 4, "max_seeds": 4}, claims=claims)
    do(asked, value)
    final = [job for job in asked.update().jobs if job.stage == "final"]
    assert {norm: sum(job.norm == norm for job in final) for norm in asked.content.norms} == {
        "none": 2,
        "ln": 4,
        "rms": 4,
    }


def test_a_norm_that_diverges_at_every_rate_has_no_final_runs(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    do(asked, lambda job: math.nan if job.norm == "ln" else value(job))
    campaign = asked.update()
    assert {job.norm for job in campaign.jobs if job.stage == "final"} == {"rms"}
    assert not campaign.undecided
    (verdict,) = campaign.verdicts
    assert (verdict.outcome, verdict.diverged_b) == ("inconclusive", 2)


def test_only_one_process_at_a_time_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits reads the records after the other has written, so an older plan never replaces a newer one."""
    monkeypatch.setattr(question, "PATIENCE", 0.0)
    asked, written = ask(tmp_path), list[bool]()
    asked.folder.mkdir(parents=True)
    other = (asked.folder / ".lock").open("w")  # another process holds the lock for a moment
    fcntl.flock(other, fcntl.LOCK_EX)

    def end() -> None:
        with other:
            written.append((asked.folder / campaign_file.FILE).exists())

    timer = threading.Timer(0.1, end)
    timer.start()
    campaign = asked.update()
    timer.join()
    assert written == [False]
    assert campaign.path.exists()
    assert capsys.readouterr().err == f"rmsexp: waiting for another process that writes {asked.folder}\n"


def test_half_and_quarter_octaves_follow_the_octaves(tmp_path: Path) -> None:
    asked = ask(tmp_path, rules=3)
    campaign = asked.update()
    assert len(campaign.jobs) + sum(job.stage == "tune" for job in campaign.coming()) == 2 * 13
    rounds = do(asked, value)
    assert sum(job.stage == "tune" for jobs in rounds for job in jobs) == 2 * 13
    rates = [sorted({job.rate for job in jobs}) for jobs in rounds]
    assert rates[:3] == [[1e-3, 2e-3, 4e-3], [1.414e-3, 2.828e-3], [1.682e-3, 2.378e-3]]
    assert {job.seed for job in rounds[3]} == {1001, 1002}
    assert [job.stage for job in rounds[4]] == ["final"] * 4
    stored = json.loads((asked.folder / campaign_file.FILE).read_text())
    assert (stored["rules"], stored["seeds"]["min_seeds"], stored["seeds"]["max_seeds"]) == (3, 2, 4)
    campaign = asked.update()
    assert all(not math.isnan(verdict.rates) for verdict in campaign.verdicts)
    assert campaign.remarks == ["not registered: the campaign's file has no digest of its rules"]


def test_a_single_rate_is_not_tuned(tmp_path: Path) -> None:
    asked = ask(tmp_path, rules=3, tune={"over": {"optim.lr": [2e-3]}})
    (jobs,) = do(asked, value)
    assert {(job.stage, job.rate) for job in jobs} == {("final", 2e-3)}
    assert [verdict.rates for verdict in asked.update().verdicts] == [0.0]


# --- what is printed


def recall(job: Job) -> float:
    return 20 - abs(math.log2(job.rate / 2e-3)) + (0.01 * job.seed + 1) * (job.norm == "rms")


def test_a_plan_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 runs of tuning are planned, 8 more follow, then 4 final ones, each of which takes 2 hours."""
    asked = ask(tmp_path)
    tried = list[Job]()
    monkeypatch.setattr(summary, "trial", lambda _, job: (tried.append(job), 7200.0)[1])
    summary.print_plan(asked)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{asked.folder.name}: Is RMSNorm as good as LayerNorm?"
    assert [line.split()[:2] for line in lines[1:7]] == [["tune", "missing"]] * 6
    assert [line.split() for line in lines[7:10]] == [
        ["stage", "missing", "coming", "took", "time", "left"],
        ["tune", "6", "8", "0:00", "28:00:00"],
        ["final", "0", "4", "0:00", "8:00:00"],
    ]
    assert lines[-2:] == [
        f"plan    {asked.folder / 'campaign.json'}",
        f"next    python -m rmsexp.campaign tiny results={asked.results} --config-dir {asked.config_dir}",
    ]
    assert [job.norm for job in tried] == ["ln", "rms"]


SEES = {"quality_rnnsearch": "of at least 0.59 with 8 seeds or 0.39 with 16 seeds (BLEU)"}


@pytest.mark.parametrize("name", [*SEES, "quick", "length_ladder", "stable_range"])
def test_a_plan_says_what_its_seeds_can_see(name: str, tmp_path: Path) -> None:
    """sqrt(1 / 8) times 0.508, the standard deviation in configs/spread.yaml, times two quantiles of t."""
    lines = [line for line in question.read(name, [f"results={tmp_path}"]).plan().lines if line.startswith("sees")]
    assert [SEES.get(name, "no record") in line for line in lines] == [True] * (name in SEES)
    t = stats.t.ppf([0.95, 0.9], 7).sum()
    assert seeds.smallest(0.508, 8) == pytest.approx(0.508 * t / math.sqrt(8))
    assert seeds.smallest(0.0, 8, 1.0) == pytest.approx(stats.norm.ppf([0.95, 0.9]).sum())


def test_a_plan_after_all_runs_and_verdicts_with_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is tried: the data may be on another machine."""
    asked = ask(tmp_path)
    monkeypatch.setattr(question, "code", lambda: {"commit": "abc", "code": "x"})
    asked.register()
    do(asked, recall)
    monkeypatch.setattr(summary, "trial", lambda *_: pytest.fail("a trial"))
    summary.print_plan(asked)
    out = capsys.readouterr().out.splitlines()
    assert ["tune", "14", "0", "23:20", "0:00"] in [line.split() for line in out]  # 100 s each
    assert out[-1] == f"next    python -m rmsexp.report {asked.results}"
    summary.print_verdicts(asked)
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["rate of ln: 0.002", "rate of rms: 0.002"]
    assert out[2].startswith(
        "supported†, but better: RMSNorm equals LayerNorm: +1.00 (+0.97 to +1.04) points, 2 seeds, which see "
    )
    assert out[3:] == [f"next    python -m rmsexp.report {asked.results}"]


def test_what_is_not_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    do(asked, recall, {"tune": 1})
    write_run(asked, asked.update().jobs[-1], status="failed")
    summary.print_verdicts(asked)
    out = capsys.readouterr().out
    assert "not decided yet: no final runs, 6 of the 14 tuning runs planned so far" in out
    assert "next    python -m rmsexp.campaign tiny results=" in out


def test_all_norms_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left to do, so the campaign's command is not suggested."""
    asked = ask(tmp_path)
    do(asked, lambda _: math.nan)
    summary.print_verdicts(asked)
    out = capsys.readouterr().out
    assert "rate of ln: none: it diverged at every rate" in out
    assert "next    python -m rmsexp.report" in out
    summary.print_plan(asked)
    out = capsys.readouterr().out
    assert "next    python -m rmsexp.report" in out


# --- claims about slopes along a ladder, or about stable ranges of rates

SLOPE = {"claim": "The difference is the same", "test": "equivalence", "a": "rms", "b": "ln", "margin": 0.5}
WIDER = {"claim": "RMSNorm has the wider range", "test": "superiority", "a": "rms", "b": "ln"}
LADDER = {"schedule.steps": [20, 40, 80], "schedule.warmup": [2, 4, 8]}
FINAL = {"min_seeds": 4, "max_seeds": 4}
ENDS = "+schedule.steps=20+schedule.warmup=2", "+schedule.steps=80+schedule.warmup=8"


def loss(job: Job) -> float:
    """Return a loss. RMSNorm loses 0.3 more with each doubling of the steps."""
    doublings = math.log2(int(job.norm.partition("steps=")[2].partition("+")[0]) / 20)
    best = 2e-3 if "steps=20" in job.norm else 1e-3 * 2**0.5
    noise = 0.01 * (job.seed % 3) * len(job.norm)
    return abs(math.log2(job.rate / best)) + doublings * (0.3 if job.norm.startswith("rms") else 0.0) + noise


def test_a_ladder_is_tuned_at_its_ends_and_decided_by_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"task": "transformer", "scale": "demo", "norm.impl": "eager"}  # its schedule has a warm-up
    tune = {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}, "by": "valid loss"}
    final = FINAL | {"score": "test loss"}
    asked = ask(tmp_path, runs=runs, tune=tune, final=final, ladder=LADDER, claims=[SLOPE], rules=3)
    monkeypatch.setattr(question, "code", lambda: {"commit": "abc", "code": "0"})
    asked.register()
    rounds = do(asked, loss)
    tuned = {job.norm for jobs in rounds for job in jobs if job.stage == "tune"}
    assert tuned == {norm + end for norm in ("ln", "rms") for end in ENDS}
    final = {(job.norm, job.rate) for job in rounds[-1]}
    assert len(rounds[-1]) == 2 * 3 * 4
    by_norm = dict(final)
    first, last = (by_norm["rms" + end] for end in ENDS)
    between = by_norm["rms+schedule.steps=40+schedule.warmup=4"]
    assert (first, last) == (2e-3, pytest.approx(1e-3 * 2**0.5, rel=1e-3))
    assert between == pytest.approx(math.sqrt(first * last), rel=1e-3)
    campaign = asked.update()
    (verdict,) = campaign.verdicts
    assert verdict.outcome == "supported"
    assert verdict.difference == pytest.approx(-0.3)
    ends = campaign.choice
    r = [math.hypot(ends[norm + ENDS[0]].uncertainty, ends[norm + ENDS[1]].uncertainty) / 2 for norm in ("ln", "rms")]
    assert verdict.rates == pytest.approx(math.hypot(*r) / 2)
    row = (numbers := verdicts.table([campaign])).iloc[0]
    assert (row["of"], row["unit"]) == ("slope", "nats per doubling of schedule.steps")
    again = campaign_results.load(campaign.path)
    assert again == campaign
    assert not again.all_remarks()
    again.choice["rms" + ENDS[0]] = replace(ends["rms" + ENDS[0]], edge="highest")
    assert again.all_remarks() == [f"the chosen rate of rms{ENDS[0]} is the highest of the extended grid"]
    charts = campaign_report._charts([campaign], numbers, load(asked.results), {})
    assert charts.keys() >= {"differences", "ladder"}
    uncertain = verdicts.readable_rates(again)["uncertainty of tuning"]
    assert uncertain[0] == f"{ends['ln' + ENDS[0]].uncertainty:.2g} nats"


def recall_by_rate(job: Job) -> float:
    """Return a recall with its best rate at 2e-3, which falls less steeply with RMSNorm."""
    octaves = abs(math.log2(job.rate / 2e-3))
    return 20 - octaves**2 * (1 if job.norm == "rms" else 4) + 0.05 * (job.seed % 3) * octaves * len(job.norm)


def ask_for_ranges(folder: Path) -> Question:
    rates = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    return ask(folder, tune={"over": {"optim.lr": rates}}, final=FINAL | {"tolerance": 1.5}, claims=[WIDER], rules=3)


def test_stable_ranges_are_decided_by_their_widths(tmp_path: Path) -> None:
    asked = ask_for_ranges(tmp_path)
    rounds = do(asked, recall_by_rate)
    assert {job.stage for jobs in rounds for job in jobs} == {"final"}
    assert [(job.norm, job.seed) for job in rounds[0]] == [(norm, 0) for norm in ("ln", "rms") for _ in range(5)]
    campaign = asked.update()
    ranges = campaign.ranges
    assert None not in ranges.values()
    (verdict,) = campaign.verdicts
    assert verdict.outcome == "supported"
    widths = campaign.scores
    assert verdict.difference == pytest.approx(sum(widths["rms"][seed] - widths["ln"][seed] for seed in range(4)) / 4)
    assert verdict.difference > 1
    row = verdicts.table([campaign]).iloc[0]
    assert (row["of"], row["unit"]) == ("stable range", "octaves")
    assert campaign_results.load(campaign.path) == campaign
    assert not any(map(campaign.compares, campaign.jobs))
    panel = panels.rates(campaign, style.looks(["ln", "rms"]))
    bars = [mark for mark in panel.marks if mark.kind == "interval"]
    drawn = [(*mark.x, *mark.low, *mark.high) for mark in bars]
    assert drawn == [(each.best, each.low, each.high) for each in ranges.values()]
    best = max(mean for mark in panel.marks if mark.kind == "line" for mean in mark.y)
    assert best < bars[0].y[0] < bars[1].y[0] < panel.y.range[1]  # beyond the curves: they do not coincide


def test_a_range_that_reaches_the_end_of_the_grid_bounds_a_claim_on_one_side_only(tmp_path: Path) -> None:
    asked = ask_for_ranges(tmp_path)
    do(asked, lambda job: 20.0 if job.norm == "ln" else recall_by_rate(job))
    campaign = asked.update()
    (verdict,) = campaign.verdicts
    assert (verdict.low, verdict.outcome) == (-math.inf, "refuted")
    assert remarks.on_claim(campaign, campaign.claims[0])[-1].startswith(
        "the stable range of ln reaches an end of the grid"
    )
    do_wide = ask_for_ranges(tmp_path / "other")
    do(do_wide, lambda job: 20.0 if job.norm == "rms" else recall_by_rate(job))
    campaign = do_wide.update()
    (verdict,) = campaign.verdicts
    assert (verdict.high, verdict.outcome) == (math.inf, "supported")


def test_tuning_runs_may_have_options_of_their_own(tmp_path: Path) -> None:
    tune = {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}, "runs": {"schedule.steps": 40}}
    asked = ask(tmp_path, tune=tune)
    tuned, final = (asked.job(stage, "rms", 1e-3, 0).config for stage in ("tune", "final"))
    assert (tuned.schedule.steps, final.schedule.steps) == (40, 20)
    do(asked, recall_by_rate)
    campaign = asked.update()
    assert "its rates were chosen with schedule.steps=40" in campaign.remarks
    assert campaign_results.load(campaign.path) == campaign
    final = {"min_seeds": 2, "max_seeds": 2, "score": "valid image_recall"}
    untuned = ask(tmp_path / "one", tune=tune | {"over": {"optim.lr": [1.0e-3]}}, final=final, rules=None)
    do(untuned, recall_by_rate)
    assert not [line for line in untuned.update().remarks if "rates" in line]
