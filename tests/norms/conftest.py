"""The fixture that runs a test of norms with both implementations."""

import pytest
from helpers.interpreter import INTERPRETED

FUSED = pytest.param("fused", marks=pytest.mark.slow)


@pytest.fixture(params=[FUSED] if INTERPRETED else ["eager", FUSED])
def impl(request: pytest.FixtureRequest) -> str:
    """Return the implementation: "eager", then "fused", which is skipped where the kernels cannot be built.

    In a process that runs Triton's interpreter, only "fused" is tested, with the Triton kernels.
    """
    if request.param == "fused":
        request.getfixturevalue("fused_kernels")
    return str(request.param)
