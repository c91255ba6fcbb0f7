"""Mutation testing: plant faults in the package, one at a time, and count how many the tests detect.

    python scripts/mutants.py COVERAGE --durations JUNIT.xml [--seed 0] [--count 60] [--suite]

COVERAGE is the data file that ``pytest --cov=rmsexp --cov-branch --cov-context=test`` writes; JUNIT.xml is written by
its option ``--junitxml``. The seed determines which faults are drawn from the areas in ``AREAS``. Each fault is planted
in a temporary worktree of HEAD. Then the tests that executed the changed line run, quickest first, until one fails or
60 seconds have passed. With ``--suite``, the whole suite runs if these tests detect nothing.

Coverage does not measure C++, nor the processes in which Triton's interpreter executes kernels. So faults in C++ are
tested with all tests of the files ``CPP_TESTS`` that use no interpreter, and faults in Triton kernels with those of
``TRITON_TESTS`` and with the tests in tests/norms/kernels that run their file in the interpreter.

Prints two lines per fault and writes all faults as JSON to ``--output``. Repeated with the same output file, the
command plants only the faults that were not detected before. ``--again FILE`` plants the faults of an earlier output,
in code that may have moved since: each is found by its function's qualified name, its line and its kind.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import coverage

UNKNOWN_NAME, NO_TESTS = 4, 5  # exit statuses of pytest
SECONDS = 60.0  # time limit of the tests that are selected for a fault
# An area's share of the faults, relative to the other areas, and a pattern of its files
AREAS = {
    "norms": (12, r"norms/\w+\.py"),
    "models": (10, r"models/\w+\.py"),
    "loop": (8, r"(train/(loop|step|optim|schedule|randomness|device)|system/clock)\.py"),
    "checkpoint": (6, r"(train/checkpoint|system/process|records/record|work/runner)\.py"),
    "statistics": (6, r"(rules/\w+|records/frames/(statistics|curves)|report/tables/\w+)\.py"),
    "campaigns": (5, r"(campaign/\w+|system/lock|records/states)\.py"),
    "timing": (5, r"(train/contention|measure/\w+|records/frames/(time_states|timing_records))\.py"),
    "readers": (5, r"(data/\w+|records/frames/load)\.py"),
    "kernels": (5, r"norms/kernels/(\w+/)?(?!__init__)\w+\.py"),
    "C++": (3, r"norms/kernels/cpp/\w+\.cpp"),
}
# kinds of faults in C++: pattern and replacement
CPP = ((r" \+ ", " - "), (r" - ", " + "), (r" < ", " <= "), (r" \* ", " + "), (r"\beps\b", "0"))
# the name, in files of tests/norms/kernels, of the test that runs its file once more, in Triton's interpreter; it takes
# minutes, so that the JUnit file may lack it
WHOLE = "test_under_the_interpreter"
# the tests that run C++ kernels, and those of Triton kernels
CPP_TESTS = re.compile(rf".*tests/norms/kernels/test_(?!build|triton)\w+\.py::(?!{WHOLE}$).*")
TRITON_TESTS = re.compile(rf".*tests/norms/kernels/(test_triton\w*\.py::.*|test_\w+\.py::{WHOLE})")
NO_ARGUMENT = {ast.Starred, ast.Constant}  # what is never swapped with another argument
# functions whose first two arguments are never swapped
NOT_SWAPPED = {"isinstance", "issubclass", "zip", "getattr", "setattr", "hasattr", "range", "print", "super"}


@dataclass
class Mutant:
    """A fault: the bytes from ``start`` to ``end`` of a file, ``old``, are replaced by ``new``.

    Attributes:
        area, kind: the area of the file (a key of ``AREAS``) and the kind of fault, such as "sign".
        file, line: where the fault is; ``file`` is relative to the repository.
        function: the qualified name of the function or class around it; the file's name for C++ and for other lines.
        code, number: its line, without indentation; its place, from 0, among faults of the file with equal identity.
        tests, test: the number of tests selected for it, and the first that failed.
        result: "" before it is tested, then a text that begins with "killed", "survived" or "gone".
    """

    area: str
    kind: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    function: str = ""
    code: str = ""
    number: int = 0
    tests: int = 0
    result: str = ""
    test: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        """What identifies the fault in code that has moved."""
        return self.kind, self.function, self.code, self.old, self.new, self.number


def python_mutants(area: str, file: str, text: str) -> Iterator[Mutant]:
    """Yield every fault that can be planted in a Python file with this text."""
    source = text.encode()
    lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]

    def span(node: ast.expr) -> tuple[int, int]:
        end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return lines[node.lineno - 1] + node.col_offset, end

    def mutant(kind: str, line: int, start: int, end: int, new: str) -> Mutant:
        return Mutant(area, kind, file, line, start, end, source[start:end].decode(), new)

    def operator(left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Mutant]:
        start, end = span(left)[1], span(right)[0]
        place = source[start:end].find(old.encode())
        if place >= 0:
            yield mutant(kind, left.lineno, start + place, start + place + len(old), new)

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if ast.unparse(right) in ("eps", "self.eps"):
                yield mutant("eps", left.lineno, span(left)[1], span(right)[1], "")
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from operator(left, right, "+", "-", "sign")
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                yield from operator(left, right, "-", "+", "sign")
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                yield mutant("sign", node.lineno, span(node)[0], span(operand)[0], "")
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as op], comparators=[right]):
                old = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}[type(op)]
                yield from operator(left, right, old, old[0] if len(old) == 2 else f"{old}=", "bound")
            case ast.keyword(arg="dim" | "axis", value=ast.Constant(value=int()) as value):
                yield mutant("axis", value.lineno, *span(value), "0" if value.value else "-1")
            case ast.keyword(arg="dim" | "axis", value=ast.UnaryOp() as value):
                yield mutant("axis", value.lineno, *span(value), "0")
            case ast.Call(func=ast.Attribute(value=value, attr="detach"), args=[]):
                yield mutant("detach", node.lineno, span(value)[1], span(node)[1], "")
            case ast.Call(func=function, args=[first, second, *_]) if not {type(first), type(second)} & NO_ARGUMENT:
                texts = [source[slice(*span(argument))].decode() for argument in (first, second)]
                if texts[0] != texts[1] and ast.unparse(function) not in NOT_SWAPPED:
                    new = texts[1] + source[span(first)[1] : span(second)[0]].decode() + texts[0]
                    yield mutant("swapped", node.lineno, span(first)[0], span(second)[1], new)


def cpp_mutants(area: str, file: str, text: str) -> Iterator[Mutant]:
    """Yield a fault for each match of ``CPP`` in a C++ file: indented lines, no comments and no template headers."""
    position = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = line.split("//")[0]
        if code.startswith((" ", "\t")) and "template" not in code:
            for pattern, new in CPP:
                for match in re.finditer(pattern, code):
                    start, end = (len(text[: position + place].encode()) for place in match.span())
                    yield Mutant(area, "C++", file, number, start, end, match.group(), new)
        position += len(line)


def faults(root: Path, area: str, pattern: str) -> Iterator[Mutant]:
    """Yield every fault that can be planted in the files of an area."""
    for path in sorted((root / "rmsexp").rglob("*")):
        file = path.relative_to(root).as_posix()
        if not re.fullmatch(rf"rmsexp/{pattern}", file):
            continue
        text, is_python, seen = path.read_text(), path.suffix == ".py", Counter[tuple[object, ...]]()
        lines, names = text.splitlines(), functions(text) if is_python else {}
        for mutant in (python_mutants if is_python else cpp_mutants)(area, file, text):
            mutant.function = names.get(mutant.line, path.stem)
            mutant.code = lines[mutant.line - 1].strip()
            mutant.number = seen[mutant.identity]
            seen[mutant.identity] += 1
            yield mutant


def functions(text: str) -> dict[int, str]:
    """Return the qualified name of the innermost function or class around each line of a Python file."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}".lstrip(".")
                found.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
            visit(child, name)

    visit(ast.parse(text), "")
    return found


def again(root: Path, earlier: list[dict[str, Any]]) -> list[Mutant]:
    """Return the faults of an earlier output as they are in this tree; result "gone": not found, or not only once."""
    here = defaultdict[tuple[object, ...], list[Mutant]](list)
    for mutant in faults(root, "", r"(\w+/)*\w+\.(py|cpp)"):
        here[mutant.identity].append(mutant)
    found = []
    for entry in earlier:
        old = Mutant(**entry | {"tests": 0, "result": "", "test": ""})
        same = here[old.identity]
        of_name = [mutant for mutant in same if Path(mutant.file).name == Path(old.file).name]
        (mutant,) = of_name if len(of_name) == 1 else same if len(same) == 1 else [replace(old, result="gone")]
        found.append(replace(mutant, area=old.area))
    return found


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Draw about ``count`` faults: each area gets its share; within an area, each kind of fault is equally likely."""
    generator = random.Random(seed)
    shares = sum(share for share, _ in AREAS.values())
    drawn: list[Mutant] = []
    for area, (share, pattern) in AREAS.items():
        kinds = defaultdict[str, list[Mutant]](list)
        for candidate in faults(root, area, pattern):
            kinds[candidate.kind].append(candidate)
        for _ in range(round(count * share / shares)):
            kind = generator.choice(sorted(kinds))
            drawn.append(kinds[kind].pop(generator.randrange(len(kinds[kind]))))
            if not kinds[kind]:
                del kinds[kind]
    return drawn


class Tests:
    """Selects the tests of a fault. ``data``: a coverage file; ``durations``: a JUnit file; ``root``: the checkout."""

    def __init__(self, data: Path, durations: Path, root: Path) -> None:
        self._data = coverage.CoverageData(str(data))
        self._data.read()
        self._root = root
        self._files = {re.sub(r".*/(rmsexp/.*)", r"\1", name): name for name in self._data.measured_files()}
        self._seconds = {
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(case.get("time", 0))
            for case in ElementTree.parse(durations).iter("testcase")
        }

    def of(self, mutant: Mutant) -> list[str]:
        """Return the names of the tests to run, quickest first.

        Those of C++ and Triton kernels, which coverage does not measure, follow from the names of the tests.
        """
        if mutant.file.endswith(".cpp"):
            tests = [test for test in self._seconds if CPP_TESTS.fullmatch(test)]
        elif "kernels/triton" in mutant.file or "kernels/cuda" in mutant.file:
            files = sorted(self._root.glob("tests/norms/kernels/*.py"))
            whole = [
                f"{path.relative_to(self._root)}::{WHOLE}" for path in files if f"def {WHOLE}(" in path.read_text()
            ]
            tests = [test for test in dict.fromkeys([*self._seconds, *whole]) if TRITON_TESTS.fullmatch(test)]
        else:
            contexts = self._data.contexts_by_lineno(self._files.get(mutant.file, ""))
            tests = self._names(contexts.get(mutant.line, [])) or self._around(mutant, contexts)
        return sorted(tests, key=lambda test: self._seconds.get(test, 1.0))

    def _around(self, mutant: Mutant, contexts: dict[int, list[str]]) -> list[str]:
        """Return the tests of the innermost function or class around a line, or of the whole file.

        They stand in for the tests of a line that is executed by imports only, such as a constant.
        """
        around = functions((self._root / mutant.file).read_text())
        lines = [line for line, name in around.items() if name == around.get(mutant.line)] or list(contexts)
        return self._names([context for line in lines for context in contexts.get(line, [])])

    @staticmethod
    def _names(contexts: list[str]) -> list[str]:
        return sorted({context.rsplit("|", 1)[0] for context in contexts if "::" in context})


def pytest(root: Path, arguments: list[str], limit: float) -> tuple[int | None, str]:
    """Run pytest and return its exit status, or None after ``limit`` seconds, and the first test that failed.

    The status is 1 if a test failed, and ``NO_TESTS`` if none was run, because none was named or a name is unknown.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile("w+") as output:  # not a pipe, which processes that tests have left could keep open
        streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=root, env=environment(root), start_new_session=True, **streams)
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also after Ctrl-C, which does not reach the session of the tests
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    if status == UNKNOWN_NAME and "ERROR: not found" in text:
        status = NO_TESTS
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", text, re.M)
    return (1, failed.group(1)) if failed else (status, "")


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def judge(mutant: Mutant, root: Path, tests: Tests, deselected: list[str], suite: bool) -> None:
    """Plant a fault, run its tests, restore the file, and set ``tests``, ``result`` and ``test`` of ``mutant``."""
    path = root / mutant.file
    original = path.read_bytes()
    path.write_bytes(original[: mutant.start] + mutant.new.encode() + original[mutant.end :])
    skipped = [word for name in deselected for word in ("--deselect", name)]
    selected = [name for name in tests.of(mutant) if name not in deselected]
    mutant.tests, mutant.result = len(selected), "survived (no test)"
    try:
        if path.suffix == ".cpp":  # build the kernels first, because the 60 seconds are meant for the tests
            load = [sys.executable, "-c", "from rmsexp.norms import kernels; raise SystemExit(not kernels.load())"]
            if subprocess.run(load, cwd=root, env=environment(root), capture_output=True).returncode:
                mutant.result, mutant.test = "killed", "the kernels cannot be built"
                return
        if selected:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("\n".join(selected))
                file.flush()
                status, mutant.test = pytest(root, [*skipped, f"@{file.name}"], SECONDS)
            survived = {None: "survived (60 s)", 0: "survived", NO_TESTS: "survived (no test)"}
            mutant.result = survived.get(status, "killed")
        if suite and mutant.result != "killed":
            status, mutant.test = pytest(root, [*skipped, "-n", "2"], 3600)
            mutant.result = "survived the suite" if status in (0, NO_TESTS) else "killed by the suite"
    finally:
        path.write_bytes(original)


def take_over(mutants: list[Mutant], output: Path) -> list[Mutant]:
    """Return the faults with the results that an earlier run of this command has written to ``output``."""
    earlier = [Mutant(**entry) for entry in json.loads(output.read_text())] if output.exists() else []
    results = {(old.file, old.start, old.new): old for old in earlier}
    return [results.get((mutant.file, mutant.start, mutant.new), mutant) for mutant in mutants]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coverage", type=Path, metavar="COVERAGE", help="data file of coverage")
    parser.add_argument("--durations", type=Path, required=True, metavar="JUNIT.xml", help="durations of tests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing of faults (0)")
    parser.add_argument("--count", type=int, default=60, help="number of faults (60)")
    here = Path(__file__).parents[1]
    parser.add_argument("--tree", type=Path, default=here, help="a checkout, whose HEAD is tested (this one)")
    parser.add_argument("--deselect", action="append", default=[], help="a test that fails without a fault; repeatable")
    parser.add_argument("--output", type=Path, default=Path("mutants.json"), help="file to write (mutants.json)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="an earlier output, whose faults are planted again")
    parser.add_argument("--suite", action="store_true", help="run the whole suite for faults not detected otherwise")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "tree")
        git = ["git", "-C", str(arguments.tree), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), "HEAD"], check=True)
        try:
            earlier = json.loads(arguments.again.read_text()) if arguments.again else []
            mutants = again(root, earlier) if arguments.again else draw(root, arguments.seed, arguments.count)
            mutants = take_over(mutants, arguments.output)
            tests = Tests(arguments.coverage, arguments.durations, root)
            for number, mutant in enumerate(mutants, 1):
                if not mutant.result.startswith(("killed", "gone")):
                    judge(mutant, root, tests, arguments.deselect, arguments.suite)
                    arguments.output.write_text(json.dumps([asdict(row) for row in mutants], indent=1) + "\n")
                change = f"{mutant.old.strip()} -> {mutant.new.strip()}".replace("\n", " ")
                print(f"{number:3} {mutant.area:10} {mutant.kind:8} {mutant.file}:{mutant.line}  {change}")
                print(f"      {mutant.result} ({mutant.tests} tests) {mutant.test}", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)
    killed, gone = (sum(mutant.result.startswith(word) for mutant in mutants) for word in ("killed", "gone"))
    print(f"{killed} of {len(mutants)} detected, {gone} gone with their code")


if __name__ == "__main__":
    main()
