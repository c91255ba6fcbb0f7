"""The steps of evaluations and the score of a run."""

import math

from rmsexp.config import score


def test_evaluations_are_equally_spaced_and_end_with_the_run() -> None:
    assert score.steps(3000) == list(range(150, 3001, 150))
    for total in (20, 21, 37, 999):
        steps = score.steps(total)
        assert len(set(steps)) == score.EVALUATIONS
        assert steps == sorted(steps)
        assert steps[0] >= 1
        assert steps[-1] == total
        assert all(abs(step - (number + 1) * total / 20) <= 0.5 for number, step in enumerate(steps))


def test_the_score_is_the_mean_of_three_values() -> None:
    assert score.score([1.0, 2.0, 6.0]) == 3
    assert math.isnan(score.score([1.0, math.nan, 6.0]))
