"""Checkpoints: a changed file, another run's checkpoint and an impossible state are refused and kept."""

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rmsexp.system.command_line import ReportedError
from rmsexp.train import checkpoint
from rmsexp.train.checkpoint import BEST, DAMAGED, LAST, PREVIOUS, CheckpointError, Identity
from rmsexp.train.loop import State

IDENTITY = Identity(0, "config", "data")
OTHERS = {
    "seed": IDENTITY._replace(seed=1),
    "config": IDENTITY._replace(config="other"),
    "data": IDENTITY._replace(data="other"),
    "format": IDENTITY._replace(format=2),
}


def payload(value: float = 0.0, identity: Identity | None = IDENTITY) -> dict[str, Any]:
    model = {"weight": torch.full((3, 2), value), "scalar": torch.tensor(value, dtype=torch.bfloat16)}
    known = {} if identity is None else {"identity": identity._asdict()}
    return known | {"model": model, "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}}


def test_a_checkpoint_is_read_as_it_was_saved(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, payload(1.0))
    checkpoint.save(tmp_path, payload(2.0), checkpoint.BEST)
    for name, value in ((LAST, 1.0), (BEST, 2.0)):
        read = checkpoint.read(tmp_path / name, IDENTITY)
        assert repr(read) == repr(payload(value))
        assert repr(torch.load(tmp_path / name, weights_only=True)) == repr(read)  # the digest does not disturb torch


def test_a_change_of_any_byte_is_noticed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, payload())
    path = tmp_path / LAST
    content = path.read_bytes()
    positions = [*range(0, len(content), 61), *range(len(content) - 70, len(content))]
    for position in positions:
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=f"{path} is damaged"):
            checkpoint.read(path)


@pytest.mark.parametrize("key", OTHERS)
def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path, key: str) -> None:
    checkpoint.save(tmp_path, payload(identity=OTHERS[key]))
    for call in (
        lambda: checkpoint.read(tmp_path / LAST, IDENTITY),
        lambda: checkpoint.load(tmp_path, IDENTITY, dict),
    ):
        with pytest.raises(CheckpointError, match=rf"{LAST} is of another run \(its {key} is "):
            call()
    assert (tmp_path / LAST).exists()


@pytest.mark.parametrize("identity", [3, {"seed": 0}])
def test_an_identity_without_keys_is_refused(tmp_path: Path, identity: Any) -> None:
    checkpoint.save(tmp_path, payload() | {"identity": identity})
    with pytest.raises(CheckpointError, match="of another run"):
        checkpoint.read(tmp_path / LAST, IDENTITY)


def test_the_previous_checkpoint_replaces_one_of_another_run_which_is_kept(tmp_path: Path) -> None:
    for value, identity in ((1.0, IDENTITY), (2.0, OTHERS["seed"])):
        checkpoint.save(tmp_path, payload(value, identity))
    read, (warning,) = checkpoint.load(tmp_path, IDENTITY, dict)
    assert repr(read) == repr(payload(1.0))
    assert warning.startswith(str(tmp_path / LAST))
    assert repr(checkpoint.read(tmp_path / DAMAGED)) == repr(payload(2.0, OTHERS["seed"]))
    checkpoint.save(tmp_path, payload(3.0))  # this does not replace the previous one, which is the only intact one
    (tmp_path / LAST).unlink()
    assert repr(checkpoint.load(tmp_path, IDENTITY, dict)) == repr((payload(1.0), []))


def test_several_damaged_checkpoints_are_all_kept(tmp_path: Path) -> None:
    for text in (b"a", b"b"):
        checkpoint.save(tmp_path, payload())
        checkpoint.save(tmp_path, payload())
        (tmp_path / LAST).write_bytes(text)
        assert len(checkpoint.load(tmp_path, IDENTITY, dict)[1]) == 1
    assert [(tmp_path / name).read_bytes() for name in (f"{DAMAGED}.old0", DAMAGED)] == [b"a", b"b"]


def test_a_checkpoint_that_does_not_fit_counts_as_damaged(tmp_path: Path) -> None:
    def use(content: dict[str, Any]) -> float:
        value = float(content["model"]["weight"][0, 0])
        if value == 2:
            raise RuntimeError("size mismatch\nsecond line")
        return value

    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, payload(value))
    result, (warning,) = checkpoint.load(tmp_path, IDENTITY, use)
    assert result == 1
    assert warning.startswith(str(tmp_path / LAST))
    assert "\n" not in warning


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=repr)
def test_too_little_memory_is_no_damage(tmp_path: Path, error: Exception) -> None:
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, payload(value))
    with pytest.raises(type(error)):
        checkpoint.load(tmp_path, IDENTITY, Mock(side_effect=error))
    assert sorted(path.name for path in tmp_path.iterdir()) == [LAST, PREVIOUS]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
def test_a_checkpoint_that_may_be_intact_is_not_taken_for_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, payload(value))

    original = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == LAST:
            raise OSError(number, os.strerror(number))
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    if number == errno.EIO:
        read, warnings = checkpoint.load(tmp_path, IDENTITY, dict)
        assert (repr(read), len(warnings)) == (repr(payload(1.0)), 1)
        return
    with pytest.raises(ReportedError, match=LAST):
        checkpoint.load(tmp_path, IDENTITY, dict)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LAST, PREVIOUS]


@pytest.mark.parametrize("content", [[1], payload(1.0, None)])
def test_a_file_that_this_package_did_not_write_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / LAST)
    with pytest.raises(CheckpointError, match=LAST):
        checkpoint.load(tmp_path, IDENTITY, dict)


STATE = dataclasses.asdict(State(4, 32, 4, 0.5, [[1.0, 2.0, 0.5, 8]], ["loss"], 9))


def test_the_state_of_a_checkpoint_is_read_as_it_was_saved() -> None:
    assert dataclasses.asdict(State.of(STATE | {"skipped": 0})) == STATE  # a value of an earlier version


def test_a_state_that_lacks_a_value_is_refused() -> None:
    with pytest.raises(KeyError, match="metrics"):
        State.of({name: value for name, value in STATE.items() if name != "metrics"})
