"""The registration of a campaign: written once, compared ever after."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.campaigns import EQUAL, ask

from rmsexp import config
from rmsexp.campaign import campaign_file, question
from rmsexp.campaign.question import OtherCommitError, Question
from rmsexp.commands.campaign import main

OWN = {"commit": "c0ffee1234567", "code": "digest"}

pytestmark = pytest.mark.usefixtures("quick_folders")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Question:
    monkeypatch.setattr(question, "code", lambda: OWN)
    registered = ask(tmp_path)
    assert registered.registered() is None
    registered.register()
    return registered


def test_the_registration_is_written_once(asked: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (asked.folder / campaign_file.REGISTRATION).read_text()
    changed = ask(tmp_path, claims=[EQUAL | {"margin": 4}])
    changed.register()
    monkeypatch.setattr(question, "code", lambda: OWN | {"commit": f"{OWN['commit']}+"})
    asked.register()  # new results are uncommitted changes, too
    assert (asked.folder / campaign_file.REGISTRATION).read_text() == before
    found = asked.registered()
    assert found == (campaign_file.digest(asked.rules()), OWN["commit"], found and found.date, None)
    assert asked.update().registered == found


@pytest.mark.usefixtures("asked")
def test_changes_since_are_named(tmp_path: Path) -> None:
    final = {"min_seeds": 2, "max_seeds": 3}
    for changes, named in (
        ({"claims": [EQUAL | {"margin": 4}], "final": final, "margin": None}, "final, claims"),
        ({"timing": {"norms": ["ln", "rms"], "budget": 7}}, None),
    ):
        found = ask(tmp_path, **changes).registered()
        assert found is not None
        assert found.changed == named


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"commit": "decade"}, f"git worktree add ../rmsexp-c0ffee1 {OWN['commit']}"),
        ({"commit": "code 4567"}, "tiny"),
        ({"code": "another"}, "tiny"),
    ],
)
def test_other_code_is_refused(
    other: dict[str, str], named: str, asked: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "code", lambda: OWN | other)
    with pytest.raises(OtherCommitError, match=named):
        asked.register()


@pytest.mark.parametrize("content", ["{}", "{", '{"digest": "a", "commit": "b", "date": "c", "rules": []}'])
def test_a_damaged_registration_is_refused(content: str, asked: Question) -> None:
    (asked.folder / campaign_file.REGISTRATION).write_text(content)
    with pytest.raises(ValueError, match=rf"{campaign_file.REGISTRATION}"):
        asked.update()


def test_a_recipe_is_part_of_the_code_and_a_campaign_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    digests = []
    for place in ("recipe/cifar10/medium.yaml", "campaign/mine.yaml", "norm/rms.yaml"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}")
        digests.append(question.code()["code"])
    assert len(digests[0]) == 16
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "recipe/cifar10/medium.yaml").write_text("schedule: {steps: 7}")
    assert question.code()["code"] not in digests


def test_the_command_registers_before_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    words = ["tiny", f"results={asked.results}", "--config-dir", str(tmp_path / "configs")]
    assert main([*words, "--register"]) == 0
    assert str(asked.folder / campaign_file.REGISTRATION) in capsys.readouterr().out
    assert not (asked.results / "order_embedding").exists()
    with pytest.raises(SystemExit):
        main([*words, "--register", "--jobs", "2"])
    assert main(["table1", "--register"]) == 2
