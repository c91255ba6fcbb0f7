"""Fixtures that several test files share."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from helpers.tasks import Main

# Threads that wait must not spin, or tests take ten times as long beside another busy process. This must be set before
# torch is imported; subprocesses inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Runs on a GPU need it for determinism. It is read at a process's first product of matrices on the GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Commands that are printed call the interpreter "python" if the shell does, as in an active environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# A shell ignores Ctrl-C for commands that a script starts with "&", and subprocesses would inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nohup ignores SIGHUP, for subprocesses, too.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# what takes longest comes first, so that at the end no worker waits for another one's long test
LONGEST = ("notebooks/", "test_triton.py::test_under", "test_triton_compile", "test_wheel.py::test_help")


# notebooks that hardly depend on this package, or do what other tests do, too
MINUTES = ("notebooks/00_", "notebooks/02_", "notebooks/04_")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(MINUTES):
            item.add_marker(pytest.mark.minutes)
    items.sort(key=lambda item: not any(part in item.nodeid for part in LONGEST))


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what collection made, and run less often: it took up to a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries report what is not collected at the end


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """Make torch use one thread, because with small tensors threads wait for each other longer than they compute.

    RMSEXP_TEST_THREADS sets another number. ``make test-full`` tests with 1 and 2 threads.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("RMSEXP_TEST_THREADS", "1")))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def apart_from_the_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests that measure from waiting for, and pausing, campaign workers and measurements on this machine.

    They do not read its quiet reference, on which they would print notices, and probes in this process take no time; a
    real one takes up to ten milliseconds. Files count as stored at once: waiting for the disk took a part of the time
    of most runs.
    """
    from rmsexp.measure import probes
    from rmsexp.system import machine_lock

    fixed = SimpleNamespace(take=lambda: probes.Times(0.001, 0.002))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_lock, "FOLDER", tmp_path_factory.mktemp("machine"))
        patch.setattr(probes, "FOLDER", tmp_path_factory.mktemp("quiet"))
        patch.setattr(probes, "probe", lambda: fixed)
        patch.setattr(os, "fsync", os.fstat)  # which also fails if the file is closed
        yield


@pytest.fixture(scope="session", autouse=True)
def files_composed_once() -> Iterator[None]:
    """Keep what Hydra parses of its own and the package's config files, and what it composes of the same files.

    Tests compose a thousand configs, most of which differ in values alone; Hydra sets those in a copy.
    """
    from hydra._internal import config_loader_impl, config_repository, defaults_list
    from hydra.core.object_type import ObjectType

    from rmsexp import config

    repository, loader = config_repository.ConfigRepository, config_loader_impl.ConfigLoaderImpl
    load, create = repository.load_config, defaults_list.create_defaults_list
    compose, own = loader._compose_config_from_defaults_list, os.path.realpath(config.CONFIGS)
    parsed, lists, composed = dict[Any, bytes](), dict[Any, Any](), dict[int, bytes]()

    def fixed(source: Any) -> bool:
        return source.scheme() != "file" or os.path.realpath(source.path).startswith(own)

    def content(source: Any) -> tuple[Any, ...]:
        """Return what tells a source of configs apart: its place, or the files of a folder that a test made."""
        paths = [] if fixed(source) else sorted(path for path in Path(source.path).rglob("*.yaml") if path.is_file())
        files = [(path.relative_to(source.path), path.read_bytes()) for path in paths]
        return (source.provider, source.path if fixed(source) else None, *files)

    def load_once(self: Any, config_path: str) -> Any:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or not fixed(source) or source.scheme() == "structured":
            return load(self, config_path)
        key = (source.provider, source.path, config_path)
        if key not in parsed:
            parsed[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(parsed[key])

    def create_once(repo: Any, config_name: str, overrides_list: list[Any], **options: bool) -> Any:
        if config_name != "config":
            return create(repo, config_name, overrides_list, **options)
        values = defaults_list.Overrides(repo, overrides_list).config_overrides
        files = [word.input_line for word in overrides_list if not any(word is value for value in values)]
        key = (*map(content, repo.get_sources()), *files, *options.items())
        if key not in lists:
            lists[key] = create(repo, config_name, overrides_list, **options)
        return dataclasses.replace(lists[key], config_overrides=values)

    def compose_once(self: Any, defaults: list[Any], repo: Any) -> Any:
        if not any(defaults is kept.defaults for kept in lists.values()):
            return compose(self, defaults, repo)
        if id(defaults) not in composed:
            composed[id(defaults)] = pickle.dumps(compose(self, defaults, repo))
        return pickle.loads(composed[id(defaults)])  # faster than copy.deepcopy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "load_config", load_once)
        patch.setattr(repository, "__deepcopy__", lambda self, _: copy.copy(self), raising=False)  # with its sources
        patch.setattr(config_loader_impl, "create_defaults_list", create_once)
        patch.setattr(loader, "_compose_config_from_defaults_list", compose_once)
        yield


@pytest.fixture
def unwritten_figures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the writing of figures, which takes most of their time; return a list that gets the name of each."""
    from rmsexp.report.plots import canvas

    names: list[str] = []
    monkeypatch.setattr(canvas, "write", lambda _, path, *__: names.append(path.name))
    return names


@pytest.fixture(scope="session")
def fused_kernels() -> None:
    """Load the fused kernels, or skip the test where there is no C++ compiler."""
    from helpers.interpreter import need_kernels

    need_kernels()


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a ``data.root`` that contains the demo's images, scaled in place of whitened, which takes 8 s.

    Runs in this process also reuse the images before whitening; a subprocess draws them again.
    """
    import numpy as np

    from rmsexp import config
    from rmsexp.data import Images
    from rmsexp.data import cifar10 as source
    from rmsexp.data.synthetic import shapes
    from rmsexp.tasks import cifar10

    def make(folder: Path, images: Images, *_: object) -> None:
        for name, pixels in images.x.items():
            np.save(folder / f"{name}.npy", ((pixels - 127.5) / 64).astype(np.float32))

    base, images = tmp_path_factory.getbasetemp(), shapes.shapes()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "images"  # one for all pytest processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_make", make)
        source.whitened(images, config.job([]).config.data.zca_eps, root, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cifar10.SOURCES, "shapes", lambda _: images)
        yield root


@pytest.fixture(scope="session")
def text_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def text_root(text_cache: Path) -> Iterator[Path]:
    """Return a ``data.root``; for a module's tests, shrink the built-in translation corpus to 310, 16 and 16 pairs."""
    from rmsexp.data.synthetic import phrases
    from rmsexp.tasks import translation

    corpus = phrases.phrases(310, 16, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(translation.SOURCES, "phrases", lambda _: corpus)
        yield text_cache


@pytest.fixture(scope="module")
def small_synthetic_data() -> Iterator[None]:
    """Shrink built-in data for a module's tests.

    There remain 74 and 13 cloze questions, 46, 12 and 14 images with captions, and 60, 12 and 13 sentences.
    """
    from rmsexp.data import text
    from rmsexp.data.synthetic import scenes, stories
    from rmsexp.tasks import attentive_reader, language_model, order_embedding

    questions, images, sentences = stories.stories(74, 13), scenes.scenes(46, 12, 14), text.sentences(60, 12, 13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attentive_reader.SOURCES, "stories", lambda *_: questions)
        patch.setitem(order_embedding.SOURCES, "scenes", lambda *_: images)
        patch.setitem(language_model.SOURCES, "sentences", lambda *_: sentences)
        yield


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a new results folder with 11 runs of cifar10, demo, of six norms, which the test may change."""
    from helpers.comparisons import write_setting

    return write_setting(tmp_path)


@pytest.fixture
def main(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    """Return a function that runs command lines in this process, by default for two steps and without figures.

    Results and data are in the test's folder.
    """
    from helpers.tasks import Ended

    from rmsexp.commands import outcomes, run

    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # launch sets sys.argv for Hydra; this restores it after the test
    folders = (f"results={tmp_path / 'results'}", f"data.root={tmp_path / 'data'}")
    edges = ("max_steps=2", "log_every=1", "eval_every=2", "checkpoint_every=2", "threads=1", "device=cpu")

    def call(*words: str, curves: bool = False) -> Ended:
        with contextlib.ExitStack() as stack:
            if not curves:
                stack.enter_context(monkeypatch.context()).setattr(outcomes, "draw", lambda _: None)
            status = run.main([*folders, *edges, *words])
        return Ended(status, *capsys.readouterr())

    return call
