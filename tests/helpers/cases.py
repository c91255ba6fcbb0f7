"""Cases of tests of which ``make test`` has a part, and ``make test-full`` all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return the cases as parameters of a test; those that are not ``kept`` are marked as tests of minutes.

    A case is a single value or a tuple of values.
    """
    cases = list(cases)
    assert all(case in cases for case in kept), "a case to keep is not among the cases"
    marks = {True: (), False: pytest.mark.minutes}
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks[case in kept]) for case in cases]
