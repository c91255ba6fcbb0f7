"""When a run is evaluated, and what its score is.

A run with ``evaluation=scored`` or ``evaluation=validation`` is evaluated at ``EVALUATIONS`` equally spaced steps. At
each of them the first ``SAMPLE_EXAMPLES`` validation examples are evaluated, greedily where there is a search. At the
last ``SCORED`` of them the whole validation split is evaluated, too, and with ``evaluation=scored`` the test splits.

This module itself imports only the standard library.
"""

import math
from collections.abc import Sequence

# Values of the key ``evaluation``. "validation" never evaluates test splits, which tuning must not see.
PLANS = ("scored", "validation")
EVALUATIONS = 20
SCORED = 3  # number of the last evaluations whose mean is the score
SAMPLE = "valid_sample"  # the split of the evaluations on the first validation examples
SAMPLE_EXAMPLES = 256


def steps(total: int) -> list[int]:
    """Return the steps at which a run of ``total`` steps is evaluated: round(i total / 20) for i = 1, …, 20.

    The last ``SCORED`` of them are the scored ones. Raises: ValueError if there are fewer steps than evaluations.
    """
    if total < EVALUATIONS:
        raise ValueError(
            f"schedule.steps={total} is too few for {EVALUATIONS} evaluations; "
            f"use at least {EVALUATIONS} steps, or another evaluation than scored and validation"
        )
    return [round(number * total / EVALUATIONS) for number in range(1, EVALUATIONS + 1)]


def score(values: Sequence[float]) -> float:
    """Return the score of a run: the mean of a metric at its last ``SCORED`` evaluations; NaN if one of them is NaN."""
    return math.fsum(values) / SCORED
