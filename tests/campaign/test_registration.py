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
    assert (found.digest, found.commit, found.changed) == (asked.digest, OWN["commit"], None)
    assert plan.update(asked)[0].registered == found


def test_changes_since_are_named(tmp_path: Path) -> None:
    registered(tmp_path)
    final = {"seeds": {"look": 2, "most": 3}}
    found = registration.read(ask(tmp_path, claims=[EQUAL | {"margin": 4}], final=final, margin=None))
    assert found is not None
    assert found.changed == "final.seeds.most was 4 and is 3; claims[0].margin was 5.0 and is 4.0"


def test_todays_words_are_registered_with_the_version_of_the_rules(tmp_path: Path) -> None:
    asked = ask(tmp_path, final={"min_seeds": 2, "max_seeds": 4})
    rules = asked.rules()
    assert (rules["rules"], rules["final"]["min_seeds"]) == (2, 2)
    assert "rules" not in ask(tmp_path).rules()  # an earlier file keeps its digest


def test_timing_may_change(tmp_path: Path) -> None:
    asked = registered(tmp_path)
    changed = ask(tmp_path, timing={"norms": ["ln", "rms"], "budget": 7})
    assert changed.content.timing != asked.content.timing
    found = registration.read(changed)
    assert found is not None
    assert found.changed is None


@pytest.mark.parametrize(("dirty", "expected"), [(False, "abc"), (True, "abc+"), (None, "abc+")])
def test_a_commit_with_changes_or_perhaps_with_some_is_marked(
    dirty: bool | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration.provenance, "git", lambda: {"commit": "abc", "dirty": dirty})
    assert registration.code()["commit"] == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"commit": "decade"},
            r"registered at commit c0ffee1234567, and this is decade; all of its runs must come from one commit: "
            r"git worktree add \.\./rmsexp-c0ffee1 c0ffee1234567, and repeat the command there with "
            r"results=/.*/results --config-dir /",
        ),
        ({"commit": "code 4567"}, "all of its runs must come from the same code"),
        ({"code": "another"}, "the files of the package or its configs are not those with which tiny was registered"),
    ],
)
def test_other_code_is_refused(other: dict[str, str], message: str, tmp_path: Path) -> None:
    asked = registered(tmp_path)
    with pytest.raises(OtherCommitError, match=message):
        registration.register(asked, OWN | other)


def test_files_beside_the_package_may_change(tmp_path: Path) -> None:
    """New results are uncommitted changes, too, but the code is the same."""
    asked = registered(tmp_path)
    registration.register(asked, OWN | {"commit": f"{OWN['commit']}+"})
    found = registration.read(asked)
    assert found is not None
    assert found.commit == OWN["commit"]


@pytest.mark.parametrize("content", ["{}", "{", json.dumps({"digest": "a", "commit": "b", "date": "c", "rules": []})])
def test_a_damaged_registration_is_refused(content: str, tmp_path: Path) -> None:
    asked = registered(tmp_path)
    (asked.folder / campaign_file.REGISTRATION).write_text(content)
    with pytest.raises(ValueError, match=rf"{campaign_file.REGISTRATION}"):
        plan.update(asked)


def test_this_code_has_a_commit_and_a_digest() -> None:
    own = registration.code()
    assert len(own["code"]) == 16
    assert own["commit"]


def test_a_recipe_is_part_of_the_code_and_a_campaign_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    digests = []
    for place in ("recipe/cifar10/medium.yaml", "campaign/mine.yaml", "norm/rms.yaml"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}")
        digests.append(registration.code()["code"])
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "recipe/cifar10/medium.yaml").write_text("schedule: {steps: 7}")
    assert registration.code()["code"] not in digests
