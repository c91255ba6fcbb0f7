"""The selection of the tests of a planted fault in a kernel, which coverage does not measure."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import coverage
import mutants
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

CPP = ("norms.kernels.test_add_norms::test_a", "norms.kernels.test_norms::test_b", "norms.kernels.test_ported::test_c")
CPP += ("norms.test_pointwise::test_d",)
TRITON = ("norms.kernels.test_add_norms::test_under_the_interpreter", "norms.kernels.test_triton::test_e")
TRITON += ("norms.kernels.test_triton_compile::test_f",)
OTHERS = ("norms.kernels.test_build::test_g", "norms.test_modules::test_h", "test_config::test_i")


def name_of(test: str) -> str:
    file, _, function = test.partition("::")
    return f"tests/{file.replace('.', '/')}.py::{function}"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("rmsexp/norms/kernels/cpp/norms.cpp", CPP),
        ("rmsexp/norms/kernels/triton/norms.py", TRITON),
    ],
)
def test_faults_in_kernels_are_tested_by_all_tests_of_these_kernels(
    tmp_path: Path, file: str, expected: tuple[str, ...]
) -> None:
    data = coverage.CoverageData(str(tmp_path / "coverage"))
    data.write()
    cases = [test.split("::") for test in (*CPP, *TRITON, *OTHERS)]
    lines = [f'<testcase classname="tests.{module}" name="{name}" time="1"/>' for module, name in cases]
    junit = tmp_path / "junit.xml"
    junit.write_text(f"<testsuite>{''.join(lines)}</testsuite>")
    tests = mutants.Tests(tmp_path / "coverage", junit, tmp_path)
    fault = mutants.Mutant("kernels", "sign", file, 1, 0, 1, "+", "-")
    assert tests.of(fault) == [name_of(test) for test in expected]


def test_a_fault_is_found_again_in_code_that_has_moved(tmp_path: Path) -> None:
    code = "class A:\n    def f(self, x, y):\n        return x - y\n"
    (tmp_path / "before/rmsexp").mkdir(parents=True)
    (tmp_path / "before/rmsexp/old.py").write_text(code)
    (tmp_path / "after/rmsexp/room").mkdir(parents=True)
    (tmp_path / "after/rmsexp/room/new.py").write_text(f"import ast\n\n{code}")
    (fault,) = mutants.faults(tmp_path / "before", "norms", r"old\.py")
    (found,) = mutants.again(tmp_path / "after", [asdict(fault)])
    assert (found.function, found.file, found.line, found.area) == ("A.f", "rmsexp/room/new.py", 5, "norms")
    assert (tmp_path / "after" / found.file).read_text()[found.start : found.end] == "-"
    (gone,) = mutants.again(tmp_path / "after", [asdict(fault) | {"code": "return y - x"}])
    assert gone.result == "gone"
