"""The fuzzer: a short run over all readers, the verdicts on planted faults, and the inputs themselves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
from fuzzing import damage, hostile, workers

FILES = {
    "a.json": b'{"a": [1, 2, {"b": null}], "c": "x"}',
    "b.jsonl": b'{"step": 1}\n{"step": 2}\n',
    "c.yaml": b"a: 1\nb:\n  c: [2, x]\n",
    "d.pkl": hostile.contents("d.pkl")[0],
    "e.npy": hostile.contents("e.npy")[0],
    "f.npz": hostile.contents("f.npz")[5],
    "g.txt": b"some words, 1 2 3\nand more\n",
}


@pytest.mark.minutes
def test_readers_refuse_damage() -> None:
    """Each reader gets a few inputs; ``python scripts/fuzz.py`` gives them many more."""
    command = [sys.executable, fuzz.__file__, "--inputs", "12", "--seconds", "1e6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 kinds of findings" in done.stdout


@pytest.mark.parametrize("verdict", ["refused", "traceback", "message", "silent", "accepted"])
def test_the_verdict_on_an_input(verdict: str, tmp_path: Path) -> None:
    def read(_: Path) -> object:
        match verdict:
            case "refused":
                raise ValueError("damaged")
            case "traceback":
                raise KeyError("x")
            case "message":
                raise workers.Refused("x " * 200)
        return "other"

    right = (lambda _: ["value"]) if verdict == "silent" else None
    reader = workers.Reader("planted", lambda _: None, read, (ValueError, workers.Refused), right)
    assert workers._judge(reader, tmp_path, ["value"])[0] == verdict


@pytest.mark.parametrize("name", FILES)
def test_damage_differs_and_follows_from_the_random_generator(name: str) -> None:
    rng, content = random.Random(0), FILES[name]
    inputs = {damage.content(name, content, rng) for _ in range(200)}
    assert len(inputs) > 100
    for seed in range(10):
        first, second = (damage.damaged(dict(FILES), random.Random(seed)) for _ in range(2))
        assert first == second


def test_damage_to_json_mostly_keeps_the_format() -> None:
    rng, readable = random.Random(0), 0
    for _ in range(200):
        try:
            json.loads(damage.content("a.json", FILES["a.json"], rng))
        except (ValueError, RecursionError):
            continue
        readable += 1
    assert readable > 60
