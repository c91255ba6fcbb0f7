"""Whitening against an independent formula, and the entries that are kept of it."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import DataError, Images, whitening
from rmsexp.data.whitening import Whitened

EPS = 1e-5


def make(seed: int = 0) -> Images:
    """Correlated noise on 4 x 4 pixels: 48 dimensions, the last one a copy, so that an eigenvalue is zero."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(700, 48)) @ rng.normal(size=(48, 48)) * 6 + 127
    mixed[:, -1] = mixed[:, 0]
    pixels = np.rint(mixed).clip(0, 255).astype(np.uint8).reshape(-1, 3, 4, 4)
    labels = rng.integers(0, 10, 700)
    return Images(pixels[:500], labels[:500], pixels[500:], labels[500:], "noise", f"digest {seed}", True)


def whiten(images: Images, cache: Path, eps: float = EPS) -> tuple[Whitened, list[str]]:
    said: list[str] = []
    return whitening.whitened(images, eps, cache, said.append), said


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "whitened").iterdir() if not path.name.endswith(".lock"))


def test_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By singular values of the centred images, with blocks that do not divide their number."""
    monkeypatch.setattr(whitening, "BLOCK", 64)
    images = make()
    result, _ = whiten(images, tmp_path)
    train, test = ((x.reshape(len(x), -1).astype(float) - 127.5) / 128 for x in (images.train_x, images.test_x))
    _, singular, rows = np.linalg.svd(train - train.mean(axis=0))
    matrix = rows.T @ np.diag(1 / np.sqrt(singular**2 / len(train) + EPS)) @ rows
    for found, x in ((result.train_x, train), (result.test_x, test)):
        assert found.dtype == np.float32
        assert found.shape == (len(x), 3, 4, 4)
        assert not found.flags.writeable
        np.testing.assert_allclose(found.reshape(len(x), -1), (x - train.mean(axis=0)) @ matrix, atol=2e-4)
    np.testing.assert_array_equal(result.train_y, images.train_y)
    np.testing.assert_array_equal(result.test_y, images.test_y)


def test_covariance_is_the_identity_where_eigenvalues_are_large(tmp_path: Path) -> None:
    images = make()
    x = whiten(images, tmp_path)[0].train_x.reshape(500, 48).astype(float)
    eigenvalues = np.linalg.eigvalsh(x.T @ x / 500)
    before = np.linalg.eigvalsh(np.cov(images.train_x.reshape(500, 48).T / 128, bias=True)).clip(0)
    np.testing.assert_allclose(eigenvalues, before / (before + EPS), atol=1e-4)
    assert before[0] < 1e-12  # the copied pixel
    np.testing.assert_allclose(eigenvalues[before > 100 * EPS], 1, atol=0.01)
    assert (before > 100 * EPS).sum() > 40
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)


def test_second_call_reads_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, said = whiten(make(), tmp_path)
    assert said == ["whitening 700 images (once; less than a minute)"]
    monkeypatch.setattr(whitening, "fit", None)
    second, said = whiten(make(), tmp_path)
    assert said == []
    assert first.train_x.tobytes() == second.train_x.tobytes()
    assert first.test_x.tobytes() == second.test_x.tobytes()


def test_eps_source_and_data_have_entries_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whiten(make(), tmp_path)
    whiten(make(), tmp_path, eps=1e-2)
    whiten(make(seed=1), tmp_path)
    assert len(entries(tmp_path)) == 3
    changed = tmp_path / "whitening.py"
    changed.write_text(Path(whitening.__file__).read_text() + "\n")
    monkeypatch.setattr(whitening, "__file__", str(changed))
    whiten(make(), tmp_path)
    assert len(entries(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "missing", "other shape", "killed before"])
def test_damaged_entry_is_made_anew(damage: str, tmp_path: Path) -> None:
    expected = whiten(make(), tmp_path)[0].train_x.tobytes()
    (folder,) = entries(tmp_path)
    path = folder / "train_x.npy"
    if damage == "truncated":
        os.truncate(path, path.stat().st_size - 1)
    elif damage in ("empty", "garbage"):
        path.write_bytes(b"" if damage == "empty" else b"garbage" * 99)
    elif damage == "missing":
        path.unlink()
    elif damage == "other shape":
        np.save(path, np.zeros((500, 48), np.float32))
    else:
        folder.rename(folder.with_name(f".{folder.name}.tmp"))
    result, said = whiten(make(), tmp_path)
    assert len(said) == 1
    assert result.train_x.tobytes() == expected
    assert entries(tmp_path) == [folder]


def test_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=rf"{tmp_path}/whitened/\w+ \(No space left on device\); 0 MB are needed"):
        whiten(make(), tmp_path)
    assert entries(tmp_path) == []


def test_two_processes_at_once_both_succeed(tmp_path: Path) -> None:
    """One computes, the other waits for it and reads the entry."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        (first, said_first), (second, said_second) = pool.starmap(_bytes, [(tmp_path,)] * 2, chunksize=1)
    assert first == second
    assert said_first + said_second == 1
    assert len(entries(tmp_path)) == 1


def _bytes(cache: Path) -> tuple[bytes, int]:
    result, said = whiten(make(), cache)
    return result.train_x.tobytes(), len(said)
