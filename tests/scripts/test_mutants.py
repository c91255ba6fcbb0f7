"""Faults that are planted: they are found again in code that has moved."""

from dataclasses import asdict
from pathlib import Path

import mutants


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
