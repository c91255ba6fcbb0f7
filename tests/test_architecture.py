"""Rules for the package: which files read the time or draw random numbers, and what commands must not import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.campaigns import Campaign

import rmsexp

PACKAGE = Path(rmsexp.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

CLOCKS = {"time", "datetime", "timeit"}
TIME_READERS = {"system/clock.py"}
# Synthetic data are drawn from a seed. Initialisers draw from a generator that their caller passes. The loggers, and
# the processes of a run when they meet, draw ids that must never repeat. Timings draw the number from which their
# orders follow, and record it.
SYNTHETIC = {"data/synthetic/__init__.py", "data/synthetic/shapes.py"}
DRAWERS = {
    *("norms/convert.py", "measure/own_steps.py", "commands/swap.py"),  # they seed torch for models of others
    "train/randomness.py",
    "train/loggers.py",
    "train/group.py",
    "measure/processes.py",
    *SYNTHETIC,
}
GIVEN_A_GENERATOR = {"models/init.py"}
RANDOM_MODULES = {"random", "secrets", "uuid", "numpy.random", "torch.random"}
DRAWING_NAMES = {
    *("torch.manual_seed", "torch.seed", "torch.Generator", "torch.normal", "torch.bernoulli", "torch.multinomial"),
    *("torch.poisson", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "os.urandom"),
}
DRAWING_PREFIXES = ("torch.rand", "np.random.", "numpy.random.", "random.", "torch.nn.init.", "nn.init.")
DRAWING_METHODS = {
    *("uniform_", "normal_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
    *("bernoulli", "multinomial", "manual_seed", "dropout", "dropout1d", "dropout2d", "dropout3d", "Dropout"),
    *("Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "default_rng", "RandomState"),
}
TAKES_GENERATOR = {"uniform_", "normal_"}  # allowed in GIVEN_A_GENERATOR with generator=
OWN_METHODS = {"noise.dropout"}  # rmsexp.task.Noise, drawn by randomness.py


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every module, and every name of a module, that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def draws(tree: ast.AST, given_a_generator: bool = False) -> list[str]:
    """Return the imports, names and calls of a file that draw random numbers or seed a generator."""
    matches = [name for name in imports(tree) if name in RANDOM_MODULES | DRAWING_NAMES]
    matches += [name for name in imports(tree) if name.startswith(DRAWING_PREFIXES)]
    in_types = {id(part) for part in _annotations(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in in_types:
            name = ast.unparse(node)
            if name in DRAWING_NAMES or name.startswith(DRAWING_PREFIXES):
                matches.append(f"{name} (line {node.lineno})")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            given = given_a_generator and any(keyword.arg == "generator" for keyword in node.keywords)
            allowed = ast.unparse(node.func) in OWN_METHODS or (given and method in TAKES_GENERATOR)
            if method in DRAWING_METHODS and not allowed:
                matches.append(f"{ast.unparse(node.func)} (line {node.lineno})")
    return matches


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of type annotations, which do not draw."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for annotation in (node.returns, *(argument.annotation for argument in arguments)):
                yield from ast.walk(annotation) if annotation is not None else ()
        elif isinstance(node, ast.AnnAssign):
            yield from ast.walk(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):  # an alias of a type
            yield from ast.walk(node.value)


def test_only_the_clock_reads_the_time() -> None:
    modules = {
        file: {name.split(".")[0] for name in imports(ast.parse(path.read_text()))} for file, path in FILES.items()
    }
    assert {file for file, imported in modules.items() if imported & CLOCKS} == TIME_READERS


def test_what_is_used_without_training_imports_neither_torch_nor_more_than_it_needs(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    code = f"""
import pathlib, sys
import rmsexp.config.score
assert not {{"numpy", "scipy"}} & set(sys.modules), "the score"
from rmsexp.commands import status
status.main([{str(tmp_path)!r}])
assert "torch" not in sys.modules, "status"
from rmsexp.commands import bench
bench.parse(["norms"])
assert "torch" not in sys.modules, "bench"
import rmsexp.report
from rmsexp.commands import analysis
from rmsexp.campaign import results as campaign_results
(state,) = campaign_results.load_all(pathlib.Path({str(tmp_path)!r}), problems=[])
assert state.verdicts
assert "torch" not in sys.modules, "reports"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_listed_files_draw() -> None:
    calls = {file: draws(ast.parse(path.read_text()), file in GIVEN_A_GENERATOR) for file, path in FILES.items()}
    assert {file for file, drawn in calls.items() if drawn} == DRAWERS, calls
    assert all(draws(ast.parse(FILES[file].read_text())) for file in GIVEN_A_GENERATOR)
