"""The provenance of a run: code, versions, device and memory; how its device is set up."""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rmsexp import config
from rmsexp.config import classes
from rmsexp.train import provenance
from rmsexp.train.device import set_up_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_a_session_has_code_versions_and_device() -> None:
    session = provenance.session(CPU, 7)
    assert session["from_step"] == 7
    assert session["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert session["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert re.fullmatch("[0-9a-f]{16}", session["code"])
    assert session["device"]
    assert (session["device_type"], session["threads"]) == ("cpu", torch.get_num_threads())
    assert session == json.loads(json.dumps(session))


@pytest.mark.parametrize("key", provenance.DECISIVE)
def test_changes_that_may_affect_results_or_times_are_detected(key: str) -> None:
    before = provenance.session(CPU, 0)
    assert provenance.changed(before, before | {"from_step": 5, "started": "later", "git": {}}) == []
    assert provenance.changed(before, before | {key: "other"}) == [key]
    without = {name: value for name, value in before.items() if name != key}
    assert provenance.changed(without, before) == [key]


def test_another_machine_number_of_processes_or_implementation_is_a_change_unless_an_older_record_lacks_it() -> None:
    before = provenance.session(CPU, 0)
    assert provenance.changed(before, before | {"world_size": 2}) == ["world_size"]
    assert provenance.changed(before | {"world_size": 2}, before | {"world_size": 2}) == []
    other = before | {"machine": before["machine"] | {"id": "another"}}
    assert provenance.changed(before, other) == ["machine"]
    older = {name: value for name, value in before.items() if name != "machine"}
    assert provenance.changed(older, other) == []
    fused, eager = before | {"impl": "fused"}, before | {"impl": "eager"}
    assert provenance.changed(fused, eager) == ["impl"]
    assert provenance.changed(fused, fused) == provenance.changed(before, eager) == []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the package in ``provenance`` by a folder of three files outside of any checkout."""
    folder = tmp_path / "checkout" / "package"
    (folder / "sub").mkdir(parents=True)
    (folder / "task.py").write_text("1\n")
    (folder / "sub/b.py").write_text("2\n")
    (folder / "sub/b.cpp").write_text("2\n")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


FAULTS = """
import resource
from rmsexp.train.device import keep_freed

def faults_of_the_last_step():
    for step in range(12):  # in the first steps the heap still grows
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytes([1]) * (megabytes << 20) for megabytes in (40, 1, 33)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults_of_the_last_step())
keep_freed()  # cannot be undone
print(faults_of_the_last_step())
"""


def test_kept_memory_avoids_page_faults_in_later_steps() -> None:
    """A step allocates 74 MiB, which are 18,944 pages of 4 KiB."""
    printed = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True).stdout
    before, after = map(int, printed.split())
    if platform.libc_ver()[0] == "glibc":
        assert after < 0.1 * before


def test_the_digest_of_the_code_changes_with_every_source_file(package: Path) -> None:
    def digest() -> str:
        return provenance.code.__wrapped__()

    before = digest()
    (package / "notes.txt").write_text("x")
    assert digest() == before
    found = {before}
    for suffix in (".py", ".cpp"):
        path = package / f"sub/b{suffix}"
        path.write_text("3\n")
        found.add(digest())
        (package / f"c{suffix}").write_text("")
        found.add(digest())
        path = path.rename(package / f"sub/c{suffix}")
        found.add(digest())
        path.unlink()
        found.add(digest())
    assert len(found) == 1 + 2 * 4


def test_the_session_has_the_commit_and_whether_files_were_changed(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = provenance.git.__wrapped__

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(package.parent), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    unknown = {"commit": None, "dirty": None}
    assert state() == unknown
    git("init", "-q")
    assert state() == unknown  # as for an installed copy inside another project's checkout
    git("add", ".")
    git("commit", "-q", "-m", "x")
    clean, dirty = ({"commit": git("rev-parse", "HEAD"), "dirty": value} for value in (False, True))
    assert state() == clean
    for name in ("results/run.json", "docs/page.md", "tests/test_a.py", "notebooks/a.ipynb", "README.md"):
        changed = package.parent / name
        changed.parent.mkdir(exist_ok=True)
        changed.write_text("4\n")
        assert state() == clean, name
    for name in ("package/task.py", "package/new.py", "configs/a.yaml", "scripts/a.py", "constraints.txt"):
        changed = package.parent / name
        changed.parent.mkdir(exist_ok=True)
        before = changed.read_text() if changed.exists() else None
        changed.write_text("4\n")
        assert state() == dirty, name
        changed.unlink() if before is None else changed.write_text(before)
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert state() == unknown


@pytest.mark.parametrize(
    "own",
    [
        {"_target_": "own_norm.Own"},
        {"_target_": "rmsexp.norms.ModuleNorm", "module": "own_norm.Own"},
        {"_target_": "rmsexp.norms.ByRole", "depths": {-1: "module+kwargs={module: 1}+module=own_norm.Own"}},
    ],
)
def test_the_digest_of_own_modules_is_of_the_sources_that_were_imported(
    own: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process goes on with the code that it has imported while the file is edited."""
    path = tmp_path / "own_norm.py"
    path.write_text("class Own: pass")
    monkeypatch.syspath_prepend(tmp_path)
    built_in = {"_target_": "rmsexp.norms.RMS"}

    def digest(edited: bool = False) -> str:
        classes.imported("own_norm.Own")
        return provenance.own_modules({"task": built_in, "norm": own}, edited)

    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    before = digest()
    assert provenance.own_modules({"norm": own, "other": built_in}) == digest(edited=True) == before
    path.write_text("class Own: faster = True")
    assert digest() == before
    assert digest(edited=True) != before
    monkeypatch.delitem(sys.modules, path.stem)  # as in a new process
    assert digest() == digest(edited=True) != before
    for without in ({"norm": built_in}, {"_target_": None}, {"norm": {"module": "torch.nn.GroupNorm"}}):
        assert provenance.own_modules(without) == ""


def test_modules_that_an_own_module_imports_belong_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside it, also if they are imported later, or in the second of two tries."""
    sources = {
        "helped_norm": "import math\nimport torch\ntry:\n    from ..own_parts import SCALE\nexcept ImportError:\n"
        "    from own_parts import SCALE\nclass Own:\n    def late(self):\n        import own_late",
        "own_late": "import helped_norm",
        "own_parts/__init__": "from .scale import SCALE",
        "own_parts/scale": "SCALE = 1",
        "own_other": "",
    }
    (tmp_path / "own_parts").mkdir()
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"norm": {"_target_": "helped_norm.Own"}}
    own = classes.imported("helped_norm.Own")
    found = provenance.own_sources(config)
    assert found.keys() == {"helped_norm", "own_late", "own_parts", "own_parts.scale"}
    own().late()
    assert provenance.own_sources(config) == provenance.own_sources(config, edited=True) == found
    (tmp_path / "own_parts/scale.py").write_text("SCALE = ")
    assert provenance.own_sources(config) == found
    assert provenance.own_sources(config, edited=True)["own_parts.scale"] == b"SCALE = "
    for name in found:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def seen_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch see a GPU, and restore what the set-up changes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for name in ("benchmark", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.mark.usefixtures("seen_gpu")
@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_on_a_gpu_operators_without_a_deterministic_algorithm_are_refused(deterministic: str) -> None:
    """With warn_only, the backward passes of attention would take algorithms whose results differ between runs."""
    device = set_up_device(config.job(["device=cuda", "threads=1", f"deterministic={deterministic}"]).config)
    assert device == torch.device("cuda")
    assert torch.are_deterministic_algorithms_enabled() == (deterministic == "true")
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.allow_tf32
