"""The registration of a campaign: written once, compared ever after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.campaign_runs import EQUAL, ask

from rmsexp import config
from rmsexp.campaign import campaign_file, plan, registration
from rmsexp.campaign.question import Question
from rmsexp.campaign.registration import OtherCommitError

OWN = {"commit": "c0ffee1234567", "code": "digest"}

pytestmark = pytest.mark.usefixtures("quick_folders")


def registered(tmp_path: Path) -> Question:
    asked = ask(tmp_path)
    assert registration.read(asked) is None
    with plan.locked(asked):
        registration.register(asked, OWN)
    return asked


def test_the_registration_is_written_once(tmp_path: Path) -> None:
    asked = registered(tmp_path)
    before = (asked.folder / campaign_file.REGISTRATION).read_text()
    changed = ask(tmp_path, claims=[EQUAL | {"margin": 4}])
    registration.register(changed, OWN)
    assert (asked.folder / campaign_file.REGISTRATION).read_text() == before
    found = registration.read(asked)
    assert found is not None
    rules = campaign_file.digest(asked.rules())
    assert (found.digest, found.commit, found.changed) == (rules, OWN["commit"], None)
    assert plan.update(asked).registered == found
    registration.register(asked, OWN | {"commit": f"{OWN['commit']}+"})  # new results are uncommitted changes, too


def test_changes_since_are_named(tmp_path: Path) -> None:
    registered(tmp_path)
    final = {"seeds": {"look": 2, "most": 3}}
    found = registration.read(ask(tmp_path, claims=[EQUAL | {"margin": 4}], final=final, margin=None))
    assert found is not None
    assert found.changed == "final, claims"
    timed = registration.read(ask(tmp_path, timing={"norms": ["ln", "rms"], "budget": 7}))
    assert timed is not None
    assert timed.changed is None


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"commit": "decade"}, f"git worktree add ../rmsexp-c0ffee1 {OWN['commit']}"),
        ({"commit": "code 4567"}, "tiny"),
        ({"code": "another"}, "tiny"),
    ],
)
def test_other_code_is_refused(other: dict[str, str], named: str, tmp_path: Path) -> None:
    asked = registered(tmp_path)
    with pytest.raises(OtherCommitError, match=named):
        registration.register(asked, OWN | other)


@pytest.mark.parametrize("content", ["{}", "{", json.dumps({"digest": "a", "commit": "b", "date": "c", "rules": []})])
def test_a_damaged_registration_is_refused(content: str, tmp_path: Path) -> None:
    asked = registered(tmp_path)
    (asked.folder / campaign_file.REGISTRATION).write_text(content)
    with pytest.raises(ValueError, match=rf"{campaign_file.REGISTRATION}"):
        plan.update(asked)


def test_a_recipe_is_part_of_the_code_and_a_campaign_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    digests = []
    for place in ("recipe/cifar10/medium.yaml", "campaign/mine.yaml", "norm/rms.yaml"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}")
        digests.append(registration.code()["code"])
    assert len(digests[0]) == 16
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "recipe/cifar10/medium.yaml").write_text("schedule: {steps: 7}")
    assert registration.code()["code"] not in digests
