"""Lists of numbers: `0-3,6`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.errors import RequestError
from mslaunch.ranges import format_ranges, parse_ranges


def test_numbers_and_ranges_are_read_in_order() -> None:
    """Numbers and ranges may be mixed, with or without brackets."""
    assert parse_ranges("0-3,6", "--devices") == (0, 1, 2, 3, 6)
    assert parse_ranges("[4, 1]", "--devices") == (4, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a number"),
        ("a", "'a' is not"),
        ("3-1", 'Write "1-3"'),
        ("1,1", "1 is named twice"),
        ("0-2,1", "twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    """Nonsense, falling ranges and repetitions are errors that name the option."""
    with pytest.raises(RequestError, match="--devices") as caught:
        parse_ranges(text, "--devices")
    assert words in str(caught.value)


@given(st.sets(st.integers(0, 5000), min_size=1))
def test_writing_and_reading_are_inverse(numbers: set[int]) -> None:
    """Any set of numbers survives being written and read."""
    assert parse_ranges(format_ranges(numbers), "x") == tuple(sorted(numbers))
