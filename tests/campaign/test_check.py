"""``rmsexp.campaign check`` on a committed campaign, copied to another folder, and on tampered copies."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import loaded
from helpers.records import edit

from rmsexp.campaign import campaign_file
from rmsexp.campaign.check import check as check_campaign
from rmsexp.campaign.results import load
from rmsexp.commands import campaign as command
from rmsexp.records import record

OURS = Path(__file__).parents[2] / "results" / "reference" / "quality"
NAME = "figure4_dose"  # 12 runs at one rate
CAMPAIGN, REGISTERED = (Path("campaigns", NAME, file) for file in (campaign_file.FILE, campaign_file.REGISTRATION))


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """Return a copy of the campaign, with its records, as somebody may send it; its RMSNorm is a norm of their own."""
    root = tmp_path / "sent"
    shutil.copytree(OURS / "campaigns" / NAME, root / "campaigns" / NAME)
    for job in campaign_file.read(root / CAMPAIGN).jobs:
        shutil.copytree(OURS / job.folder, root / job.folder)
        if job.norm.startswith("rms"):
            trained_with(root / job.folder, b"class Theirs: ...")
    return root


def trained_with(folder: Path, source: bytes) -> None:
    files, sources = record.RunFolder(folder), {"theirs": source}
    files.write_sources(sources)
    edit(files.run_path, lambda run: run["sessions"][0].update(own_code=record.digest_of_sources(sources)))


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def run_of(root: Path, norm: str, seed: int) -> Path:
    jobs = campaign_file.read(root / CAMPAIGN).jobs
    return next(root / job.folder for job in jobs if job.norm.startswith(norm) and job.seed == seed)


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = command.main(["check", str(root), "--ours", str(OURS)])
    return status, capsys.readouterr().out


def test_a_copy_follows_from_its_records(sent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged := sent / "campaigns/other").mkdir()
    (damaged / campaign_file.REGISTRATION).write_text("{")
    status, text = check(sent, capsys)
    assert (status, text.count(" ok\n")) == (0, 8)
    assert f"{NAME} is consistent with its records" in text
    assert "refuted, still improving: RMSNorm is better than LayerNorm, centred on 0.4: -0.7055" in text


def changed_metric(root: Path) -> str:
    replace(run_of(root, "rms", 1) / record.METRICS, '"loss": 2.', '"loss": 1.')
    return "complete    .*its digest is another"


def dropped_seed(root: Path) -> str:
    folder = str(run_of(root, "ln", 2).relative_to(root))
    edit(root / CAMPAIGN, lambda file: file.update(jobs=[job for job in file["jobs"] if job["folder"] != folder]))
    return "seeds       ln.* with seed 2 is missing"


def other_source(root: Path) -> str:
    (run_of(root, "rms", 0) / record.OWN_CODE / "theirs.py").write_text("class Other: ...")
    return "source      .*own_code is not the source that was trained"


def two_sources(root: Path) -> str:
    trained_with(run_of(root, "rms", 0), b"class Other: ...")
    return "source      rms.* was trained with 2 different sources"


def later_registration(root: Path, date: str = "2026-12-24T00:00:00+00:00") -> str:
    edit(root / REGISTERED, lambda registered: registered.update(date=date))
    edit(root / CAMPAIGN, lambda file: file["registered"].update(date=date))
    return "registered  12 of its 12 final runs began before its rules were registered"


def earlier_date(root: Path) -> str:
    edit(root / REGISTERED, lambda registered: registered.update(date="2026-01-01T00:00:00+00:00"))
    return "registered  the dates or commits of registration in .* differ"


def other_margin(root: Path) -> str:
    edit(root / CAMPAIGN, lambda file: file["claims"][0].update(margin=5.0))
    return "registered  campaign.json differs from the registration in claims"


def registered_again(root: Path) -> str:
    other_margin(root)
    edit(root / REGISTERED, lambda registered: registered["rules"]["claims"][0].update(margin=5.0))
    return "registered  the digests in registered.json, in campaign.json and of the registered rules differ"


def copied_run(root: Path) -> str:
    first, second = run_of(root, "rms", 0), run_of(root, "rms", 1)
    for name in (record.METRICS, record.STATUS):
        shutil.copy(first / name, second / name)
    return "no copies   .*/seed1 has the losses of .*/seed0"


def other_recipe(root: Path) -> str:
    replace(run_of(root, "rms", 0) / record.CONFIG, "label_smoothing: 0.1", "label_smoothing: 0.0")
    return "same recipe runs of the stage final differ in label_smoothing"


def other_runs(root: Path) -> str:
    for job in campaign_file.read(root / CAMPAIGN).jobs:
        replace(root / job.folder / record.CONFIG, "init: null", "init: lecun_normal")
    return "same recipe runs of the stage final differ in model.init"


def weak_baseline(root: Path) -> str:
    for seed in range(3):
        files = record.RunFolder(run_of(root, "rms", seed))
        rows, _ = files.read_metrics()
        files.metrics_path.write_text("".join(json.dumps(row | {"loss": row["loss"] + 1}) + "\n" for row in rows))
        with files.lock.held():
            files.write_status("finished", 3000)
    return r"baseline    rms scores \+1 against"


def swapped_norms(root: Path) -> str:
    others = {"ln": "rms", "rms": "ln"}
    edit(root / CAMPAIGN, lambda file: [job.update(norm=others.get(job["norm"], job["norm"])) for job in file["jobs"]])
    return "runs        .*norm.name is (rms, not ln|ln, not rms)\n.*the norm in the folder's name is "


def swapped_results(root: Path) -> str:
    ours, theirs = run_of(root, "rms", 0), run_of(root, "ln", 0)
    for name in (record.METRICS, record.STATUS):
        (ours / name).rename(root / name)
        (theirs / name).rename(ours / name)
        (root / name).rename(theirs / name)
    return "complete    .*status.json describes the run .*/seed0"


def other_norm(root: Path) -> str:
    path = run_of(root, "rms", 0) / record.CONFIG
    replace(path, "rmsexp.norms.RMS", "rmsexp.norms.LN")
    replace(path, "gain: true", "gain: false")
    return r"norm._target_ is rmsexp.norms.LN, not rmsexp.norms.RMS[^!]*rms.* differ in norm._target_, norm.gain"


def unreadable_date(root: Path) -> str:
    later_registration(root, "yesterday")
    return "registered  the date of the registration, or the start of a run, is missing"


def no_start(root: Path) -> str:
    edit(run_of(root, "rms", 0) / record.RUN, lambda run: run["sessions"][0].pop("started"))
    return "registered  the date of the registration, or the start of a run, is missing"


def more_runs(root: Path) -> str:
    path, changes = root / CAMPAIGN, ({}, {"seed": 0}, {"stage": "tune", "seed": 77})
    edit(path, lambda file: file["jobs"].extend([file["jobs"][-1] | change for change in changes]))
    return "\n  ".join(f"seeds       .* {seed} is more than the rules ask for" for seed in (0, 2, 77))


def no_digests(root: Path) -> str:
    edit(run_of(root, "rms", 0) / record.STATUS, lambda status: [status.pop("digest"), status.pop("metrics")])
    return "runs        .*status.json has no digest"


def copied_later_rows(root: Path) -> str:
    copied_run(root)
    files = record.RunFolder(run_of(root, "rms", 1))
    files.metrics_path.write_bytes(files.metrics_path.read_bytes().partition(b"\n")[2])
    with files.lock.held():
        files.write_status("finished", 3000)
    return "no copies   .*/seed1 has the losses of .*/seed0"


def one_run_for_all(root: Path) -> str:
    first = str(run_of(root, "rms", 0).relative_to(root))
    edit(root / CAMPAIGN, lambda file: [job.update(folder=first) for job in file["jobs"] if job["norm"] == "rms"])
    return "runs        .*seed is 0, not 1"


def other_mode(root: Path) -> str:
    edit(root / CAMPAIGN, lambda file: file.update(mode="max"))
    return "runs        .*mode of loss is min, not max"


def other_data(root: Path) -> str:
    edit(run_of(root, "rms", 0) / record.RUN, lambda run: run["dataset"].update(digest="c0ffee"))
    return "same recipe runs differ in their data"


def other_code(root: Path) -> str:
    edit(run_of(root, "rms", 0) / record.RUN, lambda run: run["sessions"][0]["git"].update(commit="c0ffee"))
    (other := root / "campaigns/x").mkdir()
    (other / campaign_file.REGISTRATION).write_text('{"commit": "c0ffee", "digest": "", "date": ""}')
    return "registered  runs come from c0ffee; no campaign here that lists them was registered there"


def other_rules(root: Path) -> str:
    changes: dict[str, Any] = {"supersedes": "quality", "rules": 1}
    edit(root / CAMPAIGN, lambda file: file.update(changes, seeds=file["seeds"] | {"tune": [1000]}))
    return "registered  campaign.json differs from the registration in rules, seeds.tune, supersedes"


def strange_file(root: Path) -> str:
    edit(root / REGISTERED, lambda registered: registered["rules"].update(tune=None))
    return "is refused: AttributeError"


@pytest.mark.parametrize(
    "tamper",
    [
        *(changed_metric, dropped_seed, other_source, two_sources, later_registration, other_margin),
        *(registered_again, copied_run, other_recipe, other_runs, earlier_date, weak_baseline),
        *(swapped_norms, one_run_for_all, other_mode, other_data, other_code, other_rules, strange_file),
        *(swapped_results, other_norm, unreadable_date, no_start, no_digests, more_runs, copied_later_rows),
    ],
)
def test_a_tampered_copy_is_refused_with_the_reason(
    sent: Path, capsys: pytest.CaptureFixture[str], tamper: Callable[[Path], str]
) -> None:
    reason = tamper(sent)
    status, text = check(sent, capsys)
    assert status == 1
    assert " is refused" in text
    assert re.search(reason, text)


def test_a_damaged_campaign_of_ours_refuses_none_of_theirs(sent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged := sent.parent / "ours/campaigns/other").mkdir(parents=True)
    (damaged / campaign_file.FILE).write_text("{")
    assert command.main(["check", str(sent), "--ours", str(damaged.parents[1])]) == 0
    assert "baseline    not checked" in capsys.readouterr().out


def test_values_may_be_written_in_several_ways(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    edit(campaign.path, lambda stored: stored.update(tuning_runs={"deterministic": "false", "schedule.steps": "40"}))
    edit(campaign.path, lambda stored: stored["runs"].update({"optim.clip": "1"}))
    runs = {"deterministic": False, "schedule": {"steps": 40}}
    edit(campaign.path.with_name("registered.json"), lambda stored: stored["rules"].update(tune={"runs": runs}))
    for job in campaign.jobs:
        config = tmp_path / job.folder / record.CONFIG
        config.write_text(config.read_text().replace("}", ", clip: 1.0}"))
    found = check_campaign(load(campaign.path), tmp_path / "none")
    assert "tuning_runs" not in str(found["registered"])
    assert "optim.clip" not in str(found["same recipe"])


def test_tuning_runs_are_of_the_recipe_and_code_of_final_runs(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    for job in campaign.jobs:
        if job.stage == "final":
            config = tmp_path / job.folder / record.CONFIG
            config.write_text(config.read_text() + f"model: {{layers: {12 if job.norm == 'rms' else 4}}}\n")
    later = {"git": {"commit": "later"}, "started": "2026-11-23T00:00:00+00:00"}
    edit(tmp_path / campaign.jobs[0].folder / record.RUN, lambda run: run["sessions"][0].update(later))
    found = check_campaign(campaign := load(campaign.path), tmp_path / "none")
    assert "runs of rms differ in model.layers" in found["same recipe"]
    assert any(line.startswith("runs come from later") for line in found["registered"])
    assert "model.layers is 12 with rms and 4 with ln" in campaign.all_remarks()
