"""The file of a campaign and the words on the command line: what they mean, and how mistakes are reported."""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import EQUAL, RUNS, ask

from rmsexp import config
from rmsexp.campaign import campaign_file, question
from rmsexp.campaign.asked import folder_name, overrides
from rmsexp.campaign.question import Question
from rmsexp.commands.campaign import main
from rmsexp.config import ConfigError
from rmsexp.records import record
from rmsexp.system.command_line import ReportedError

OTHER = {"claim": "better", "test": "superiority", "a": "rms", "b": "none"}


@pytest.mark.usefixtures("quick_folders")
def test_the_parts_of_a_campaign(tmp_path: Path) -> None:
    asked = ask(tmp_path, "batch_size=8", "++final.max_seeds=3", "++batch_size=16", "timing.budget=600", "++threads=2")
    assert (asked.campaign.grid, asked.campaign.seeds.tune) == ((0.001, 0.002, 0.004), (1000, 1001, 1002))
    assert (" ".join(asked.campaign.tuned_by), " ".join(asked.campaign.score)) == (
        "valid image_recall",
        "test image_recall",
    )
    assert (asked.content.final.min_seeds, asked.content.final.max_seeds) == (2, 3)
    assert asked.recipe.config.batch_size == 16
    assert asked.recipe.config.threads == 2
    assert asked.folder == tmp_path / "results" / "campaigns" / "tiny+batch_size=16+final.max_seeds=3"


def test_runs_of_each_stage(tmp_path: Path) -> None:
    asked = ask(tmp_path, "threads=2", norms=["ln", "prms+p=0.5"], claims=[EQUAL | {"a": "prms+p=0.5"}])
    tune = asked.job("tune", "prms+p=0.5", 2e-3, 1001)
    assert (tune.config.evaluation, tune.config.seed, tune.config.optim.lr) == ("validation", 1001, 2e-3)
    assert (tune.config.threads, tune.series) == (2, "prms+p=0.5")
    final = asked.job("final", "ln", 2e-3, 0)
    assert final.config.evaluation == "scored"
    assert asked.results / asked.relative_folder("final", "ln", 2e-3, 0) == final.folder
    assert asked.relative_folder("tune", "ln", 2e-3, 0) != asked.relative_folder("final", "ln", 2e-3, 0)


@pytest.mark.usefixtures("quick_folders")
def test_claims_that_a_file_does_not_make(tmp_path: Path) -> None:
    """A file without claims asks whether each norm equals the first; rates are around the recipe's."""
    asked = ask(tmp_path, "margin=1", "norms=[ln,rms,prms]", claims=None, tune=None)
    assert [(claim.a, claim.b, claim.test, claim.margin) for claim in asked.claims] == [
        ("rms", "ln", "equivalence", 1.0),
        ("prms", "ln", "equivalence", 1.0),
    ]
    assert asked.campaign.grid == (0.0015, 0.003, 0.006)


@pytest.mark.parametrize("norms", ["none,rms", "rms,none"])
def test_the_grid_does_not_depend_on_the_order_of_the_norms(norms: str, tmp_path: Path) -> None:
    """A file in configs/task_norm gives no norm on cifar10 a tenth of the recipe's rate."""
    words = ["margin=1", f"norms=[{norms}]", "data.validation=100"]
    asked = ask(tmp_path, *words, claims=None, tune=None, runs={"task": "cifar10", "scale": "demo"})
    assert asked.campaign.grid == (0.0015, 0.003, 0.006)


REFUSED_WORDS = [
    *("lerning_rate=3", "batchsize=3", "tune.bye=valid bleu", "pilot=3", "claims=[]", "margin=2", "seed=3", "norm=rms"),
    *("optim.lr=1e-3", "max_steps=10", "eval_every=10", "force=true", "schedule.steps=10", "batch_size=8,16"),
    *("batch_size", "tune.by=test image_recall", "tune.by=valid error", "final.score=image_recall"),
    *("final.score=tset image_recall", "final.score=valid_sample image_recall"),
]
ANY_STEPS = {"runs": {key: value for key, value in RUNS.items() if key != "schedule.steps"}}
LADDER = ANY_STEPS | {"ladder": {"schedule.steps": [20, 40], "schedule.warmup": [2, 4]}}
# (typed words, changes of the file, the key that the message names)
MISTAKES: list[tuple[list[str], dict[str, Any], str]] = [
    *(([word], {}, word.partition("=")[0]) for word in REFUSED_WORDS),
    ([], {"nroms": ["ln"]}, "nroms"),
    (["norms=[ln"], {}, "while parsing"),
    (["norms=&a [*a]"], {}, "recursion"),
    (["norms=[]"], {}, "norms must"),
    *(([word], {}, "a list stands where keys belong") for word in ("norms={a: 1}", "tune.over=[]", "tune.runs=[]")),
    (["norms=[ln,rms,rms]"], {}, "norms"),
    (["norms=[rsm,ln]"], {"claims": [EQUAL | {"a": "rsm"}]}, "rsm"),
    (["norms=[ln,rms,none]"], {}, "none"),
    (["norms=" + "[" * 2000], {}, "norms="),
    ([], {"norms": None}, "norms"),
    ([], {"question": None}, "question"),
    ([], {"claims": [EQUAL, OTHER]}, "none"),
    ([], {"claims": [EQUAL | {"margn": 1}]}, "margn"),
    ([], {"claims": [{"claim": "x", "test": "equivalence", "a": "rms"}]}, "claims[0] has no b"),
    ([], {"claims": [EQUAL | {"margin": None}]}, "margin"),
    ([], {"claims": ["rms equals ln"]}, "claims"),
    ([], {"claims": None}, "margin="),
    (["tune.over.optim.lr=[1e-3,3e-3]"], {}, "0.003"),
    (["tune.over.optim.lr=[]"], {}, "at least one rate"),
    (["tune.over.batch_size=[8,16]"], {}, "tune.over"),
    (["final.min_seeds=many"], {}, "final.min_seeds"),
    (["final.min_seeds=5"], {}, "final.max_seeds"),
    (["final.max_seeds=1000000000"], {}, "final.max_seeds"),
    (["timing.processes=0"], {}, "timing.processes"),
    (["timing.norms=[lnn]"], {}, "lnn"),
    ([], {"rules": 4}, "rules"),
    ([], {"ladder": {"schedule.steps": [40, 20]}}, "ladder"),
    ([], {"ladder": {"schedule.steps": [20]}}, "ladder"),
    ([], {"ladder": {"schedule.steps": [20, 40], "schedule.warmup": [2]}}, "ladder: schedule.warmup"),
    ([], ANY_STEPS | {"ladder": {"schedule.steps": [20, 40], "batch_size": [1, 2]}}, "ladder: batch_size"),
    ([], ANY_STEPS | {"ladder": {"schedule.steps": [20, 40], "schedule.stops": [1, 2]}}, "schedule.stops"),
    ([], {"ladder": {"schedule.steps": [20, 40]}}, "schedule.steps=20"),
    ([], {"ladder": {"schedule.steps": [20, 40]}, "final": {"tolerance": 1.0}}, "final.tolerance"),
    ([], {"ladder": {"schedule.steps": [20, 40]}, "claims": [EQUAL | {"untrained": 5.0}]}, "untrained"),
    *((["tune.runs." * tuning + "schedule.warmup=4"], LADDER, "schedule.warmup") for tuning in (False, True)),
    (["tune.runs.seed=1"], {}, "seed"),
    ([], {"claims": [EQUAL | {"seeds": 9}]}, "final.min_seeds"),
]


@pytest.mark.usefixtures("quick_folders")
@pytest.mark.parametrize(("words", "changes", "key"), MISTAKES)
def test_mistakes_are_reported_in_a_line(words: list[str], changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(key)) as caught:
        ask(tmp_path, *words, **changes)
    assert str(caught.value).startswith("campaign tiny: ")
    assert "\n" not in str(caught.value)


def test_a_module_is_named_in_a_file_as_on_the_command_line(tmp_path: Path) -> None:
    name = "module+class=torch.nn.LayerNorm"
    asked = ask(tmp_path, norms=["ln", name], claims=[EQUAL | {"a": name}])
    assert asked.job("final", name, None, 0).config.norm["module"] == "torch.nn.LayerNorm"


def test_a_norm_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"norms: ln and ln\+impl=eager have the same runs"):
        ask(tmp_path, "norms=[ln,ln+impl=eager]", claims=[EQUAL | {"a": "ln+impl=eager"}])


def test_rates_that_the_rules_may_ask_for_later_are_composed_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tune\.over\.data\.fold: the rules may ask for 38\.05, and data\.fold"):
        ask(tmp_path, rules=3, tune={"over": {"data.fold": [32, 64]}})


def test_the_last_of_several_words_for_a_key_counts_with_or_without_plus() -> None:
    assert overrides({"a.b": 1}, typed=["++a.b=2"]) == overrides(typed=["++a.b=3", "a.b=2"]) == ("a.b=2",)
    assert overrides(typed=["+a=1", "+b.c=1", "+b.c=2"]) == ("a=1", "+b.c=2")  # b.c may be a new key


def test_names_of_folders_differ_when_the_words_differ() -> None:
    single = ["norms=[ln,rms]", "norms=[ln-rms]", "norms=ln-rms", "norms=[ln, rms]", "x=" + "y" * 300, "x=" + "y" * 301]
    single += ["data.name=a/b", "data.name=a_b", "data.name=a,b", "x=.."]
    words = [["margin=1", "norms=[ln,rms]", "task=cifar10"], *([word] for word in single), []]
    names = [folder_name("quality", each) for each in words] + [folder_name(name, []) for name in ("a/b", "a_b")]
    assert names[:2] == ["quality+margin=1+norms=ln-rms+task=cifar10", "quality+norms=ln-rms"]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[\w.=+-]{1,230}", name) for name in names)
    assert folder_name("quality", ["a=1", "b=2"]) == folder_name("quality", ["b=2", "a=1"])


@pytest.mark.usefixtures("quick_folders")
def test_the_digest_is_of_what_decides(tmp_path: Path) -> None:
    """Places and threads do not change it; rules and runs do."""
    first = ask(tmp_path)
    for words in ([f"data.root={tmp_path}", "threads=3"], ["log_every=5", "logger=tensorboard"]):
        same = ask(tmp_path, *words)
        assert (same.rules(), same.folder) == (first.rules(), first.folder)
    others = [ask(tmp_path, word).rules() for word in ("batch_size=16", "final.max_seeds=3")]
    others += [
        ask(tmp_path, claims=[EQUAL | {"margin": 4}]).rules(),
        ask(tmp_path, runs=RUNS | {"batch_size": 5}).rules(),
    ]
    assert len({record.digest_of_values(rules) for rules in (first.rules(), *others)}) == 5


@pytest.mark.parametrize("name", [name for name in config.options("campaign") if name != "quality"])
def test_the_campaigns_of_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their runs can be composed. Norms differ little, so the first two are enough here."""
    checked: list[str] = []
    original = question.Question.relative_folder

    def folder(asked: question.Question, stage: Any, norm: str, rate: float, seed: int) -> str:
        checked.append(norm)
        return original(asked, stage, norm, rate, seed) if len(checked) <= 2 else norm

    monkeypatch.setattr(question.Question, "relative_folder", folder)
    asked = question.read(name)
    assert [*dict.fromkeys(checked)] == asked.campaign.every_arm
    assert asked.folder.name == name
    assert asked.recipe.config.evaluation == "scored"


def test_a_scale_that_only_the_task_of_the_runs_has() -> None:
    asked = question.read("quality", ["task=language_model", "scale=large", "margin=1"])
    assert asked.common.config.scale == "large"


def test_the_score_is_on_test_and_in_the_unit_of_tuning() -> None:
    for words, key in (
        (["task=cifar10", "data.validation=100", "tune.by=valid loss"], "tune.by is about loss"),
        (["task=attentive_reader", "final.score=test error"], "must be one of valid"),
        (["task=attentive_reader"], "final.score='valid error'"),
        (["task=rnnsearch", "final.score=test2017 bleu"], "must be one of valid, test"),
    ):
        with pytest.raises(config.ConfigError, match=key):
            question.read("quality", ["scale=demo", *words, "norms=[ln,rms]", "margin=1"])


# --- the registration: written once, compared ever after

OWN = {"commit": "c0ffee1234567", "code": "digest"}


@pytest.fixture
def asked(tmp_path: Path, quick_folders: None, monkeypatch: pytest.MonkeyPatch) -> Question:  # noqa: ARG001
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
    assert found[:4] == (record.digest_of_values(asked.rules()), OWN["commit"], found.date, None)
    assert asked.update().registered == found


@pytest.mark.usefixtures("asked")
def test_changes_since_are_named(tmp_path: Path) -> None:
    final = {"min_seeds": 2, "max_seeds": 3}
    for changes, named in (
        ({"claims": [EQUAL | {"margin": 4}], "final": final, "margin": None}, "final, claims"),
        ({"timing": {"norms": ["ln", "rms"], "budget": 7}}, None),
    ):
        assert ask(tmp_path, **changes).registered().changed == named


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
    with pytest.raises(ReportedError, match=named):
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


@pytest.mark.usefixtures("quick_folders")
def test_the_command_registers_before_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(tmp_path)
    words = ["tiny", f"results={asked.results}", "--config-dir", str(tmp_path / "configs")]
    assert main([*words, "--register"]) == 0
    assert str(asked.folder / campaign_file.REGISTRATION) in capsys.readouterr().out
    assert not (asked.results / "order_embedding").exists()
    (file,) = (tmp_path / "configs").rglob("tiny.yaml")
    file.write_text(file.read_text().replace("margin: ", "margin: 1"))
    assert main([*words, "--register"]) == 1
    assert ": claims; restore it" in capsys.readouterr().err
    assert main(["table1", "--register"]) == 2
