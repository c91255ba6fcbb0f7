"""The fuzzer: a short run over all readers and commands, the verdicts on planted faults, and the inputs themselves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import fuzz
import pytest
from fuzzing import arguments, commands, damage, hostile, workers

SCRIPTS = Path(__file__).parents[2] / "scripts"

FILES = {
    "a.json": b'{"a": [1, 2, {"b": null}], "c": "x"}',
    "b.jsonl": b'{"step": 1}\n{"step": 2}\n',
    "c.yaml": b"a: 1\nb:\n  c: [2, x]\n",
    "d.pkl": hostile.contents("d.pkl")[0],
    "e.npy": hostile.contents("e.npy")[0],
    "f.npz": hostile.contents("f.npz")[5],
    "g.txt": b"some words, 1 2 3\nand more\n",
}
# Each reader fails in its own way on files with the content "b", and accepts others.
PLANTED = """
    import ctypes, json, sys
    import numpy as np
    from pathlib import Path
    from fuzzing import workers

    def make(folder): Path(folder, "a").write_bytes(b"v")
    def vary(files, rng): return {"a": b"vbv"[rng.randrange(3):][:1]}
    def planted(name, act, raises=(ValueError,), right=None):
        def read(folder):
            if Path(folder, "a").read_bytes() == b"b":
                return act()
            return "value"
        return workers.Reader(name, make, read, raises, right, vary)
    def fail(error): raise error
    def hang():
        while True: pass
    def take():
        try:
            return b"x" * 2**29
        except MemoryError as error:
            raise ValueError("damaged") from error
    once = lambda folder: ["value"]
    workers.CPU_SECONDS, workers.MEMORY_BYTES = 0.5, 2**28
    readers = [
        planted("refused", lambda: fail(ValueError("damaged"))),
        planted("traceback", lambda: {}["x"]),
        planted("crash", lambda: ctypes.string_at(0)),
        planted("slow", hang),
        planted("big", lambda: b"x" * 2**29),
        planted("big and caught", take),
        planted("only reserved", lambda: np.empty(2**26)),
        planted("message", lambda: fail(workers.Refused("x " * 200)), (workers.Refused,)),
        planted("silent", lambda: "other", right=once),
        planted("accepted", lambda: "other"),
    ]
    found = {}
    for reader in readers:
        results = list(workers.results(reader, 0, 0, 12, 60, Path(sys.argv[1])))
        assert [result.number for result in results] == list(range(12)), results
        found[reader.name] = sorted({result.verdict for result in results})
    print(json.dumps(found))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=None, cwd=SCRIPTS, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.minutes
def test_readers_and_commands_refuse_damage_and_strange_arguments() -> None:
    """Each reader and command gets a few inputs; ``python scripts/fuzz.py`` gives them many more."""
    done = run("fuzz.py", "--inputs", "12", "--seconds", "1e6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 kinds of findings" in done.stdout


@pytest.mark.minutes
def test_each_kind_of_fault_is_found(tmp_path: Path) -> None:
    done = run("-c", textwrap.dedent(PLANTED), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("traceback", "crash", "slow", "big", "message", "silent", "refused"):
        assert found[name] == sorted(["accepted", name])
    assert found["big and caught"] == ["accepted", "big"]
    assert found["accepted"] == found["only reserved"] == ["accepted"]


@pytest.mark.parametrize(
    ("command", "words"), [("timing", ["norms=[ln,rms]"]), ("bench", ["norms"]), ("translate", ["empty"])]
)
def test_commands_refuse_their_work(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands.make_folder(tmp_path)
    (tmp_path / hostile.ARGUMENTS).write_text(json.dumps(words))
    with pytest.raises(workers.Refused, match="the arguments were accepted"):
        commands.running(commands.COMMANDS[command])(tmp_path)


@pytest.mark.parametrize(
    "words", [["mine", "task=order_embedding", "margin=1", "--config-dir", "my"], ["table2", "--plan"]]
)
def test_a_campaign_is_read_and_not_done(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands.make_folder(tmp_path)
    (tmp_path / hostile.ARGUMENTS).write_text(json.dumps(words))
    assert commands.running(commands.COMMANDS["campaign"])(tmp_path) == 0


def test_damage_follows_from_the_random_generator() -> None:
    for seed in range(50):
        first, second = (damage.damaged(dict(FILES), random.Random(seed)) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("name", FILES)
def test_most_inputs_of_each_format_differ(name: str) -> None:
    rng, content = random.Random(0), FILES[name]
    inputs = {damage.content(name, content, rng) for _ in range(200)}
    assert len(inputs) > 100
    assert sum(damaged == content for damaged in inputs) <= 1


def test_damage_to_json_and_yaml_mostly_keeps_the_format() -> None:
    rng = random.Random(0)
    readable = 0
    for _ in range(200):
        try:
            json.loads(damage.content("a.json", FILES["a.json"], rng))
        except (ValueError, RecursionError):
            continue
        readable += 1
    assert readable > 60


def test_a_reader_is_chosen_by_its_whole_name_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert [reader.name for reader in fuzz.choose("CIFAR-10")] == ["CIFAR-10"]
    several = [reader.name for reader in fuzz.choose("CIFAR")]
    assert several == [reader.name for reader in fuzz.readers() if "CIFAR" in reader.name]
    assert len(several) > 1
    assert fuzz.choose("CIFARs") == []
    assert len(fuzz.choose(None)) == len(fuzz.readers())
    with pytest.raises(SystemExit):
        fuzz.main(["--reader", "CIFAR", "--number", "3"])
    assert f"choose one with --reader: {', '.join(several)}" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(*_: object) -> Iterator[fuzz.Result]:
        yield fuzz.Result(0, "refused", "", 0.25)
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz.workers, "results", results)
    assert fuzz.main(["--reader", "CIFAR-10", "--results", str(tmp_path)]) == 130
    assert "| CIFAR-10 | 1 | 1 | 0 |" in capsys.readouterr().out
    written = json.loads((tmp_path / "checks/fuzz0/check.json").read_text())["results"]
    assert (written["interrupted"], written["readers"][0]["refused"]) == (True, 1)
    assert written["seconds"] < 60


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_argument_lists_stay_in_the_working_folder(command: str) -> None:
    """A list that names a file elsewhere, or a function that is called, is drawn again."""
    vary = commands.varying(command)
    lists = [json.loads(vary({}, random.Random(seed))[commands.ARGUMENTS] or b"") for seed in range(100)]
    assert len(set(map(json.dumps, lists))) > 50
    for words in lists:
        assert all(isinstance(word, str) and len(word) <= arguments.LONGEST for word in words)
        assert not any("/etc" in word or ".." in word for word in words)
    assert not commands.harmless(["results=/etc/x"])
    assert not commands.harmless(["results=../x"])
    assert commands.harmless(["results=x/y", "data.root=/dev/null"])
