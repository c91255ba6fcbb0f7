"""The kernels that tests need: they may be missing only where there is no compiler."""

from __future__ import annotations

import shutil

import pytest

from helpers import interpreter


@pytest.mark.parametrize(
    ("found", "named", "outcome"),
    [
        ([], "", pytest.skip.Exception),
        (["c++"], "", pytest.fail.Exception),
        (["g++"], "", pytest.fail.Exception),
        ([], "ccache g++", pytest.fail.Exception),
    ],
)
def test_kernels_that_do_not_build_fail_the_tests_where_there_is_a_compiler(
    monkeypatch: pytest.MonkeyPatch, found: list[str], named: str, outcome: type[BaseException]
) -> None:
    """``found``: the compilers on the path; ``named``: the one in CXX."""
    monkeypatch.setattr(interpreter, "load_kernels", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    monkeypatch.setenv("CXX", named)
    with pytest.raises(outcome):
        interpreter.need_kernels()
    monkeypatch.setattr(interpreter, "load_kernels", lambda: True)
    interpreter.need_kernels()
