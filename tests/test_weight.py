"""The project stays within its caps of lines and words (``make weight``)."""

import weight


def test_no_part_is_larger_than_its_cap() -> None:
    assert weight.beyond() == {}


def test_the_lines_and_words_of_all_parts_are_counted() -> None:
    assert all(weight.today(part) > 0 for part in weight.BUDGETS.values())
