"""Numbers and texts as a terminal shows them."""

from __future__ import annotations

import pytest

from mslaunch.text import clock_words, count_words, display_width, seconds_words, shorten, shorten_middle, wrap


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0012, "1.2 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9997, "1 s"),
        (3.456, "3.46 s"),
        (999.6, "1000 s"),
        (12345.0, "12345 s"),
    ],
)
def test_a_short_time_never_has_an_exponent(seconds: float, words: str) -> None:
    """Milliseconds become seconds where they would be rounded to one."""
    assert seconds_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0:00"), (3599.9, "59:59"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_a_clock_shows_hours_from_one_on(seconds: float, words: str) -> None:
    """Minutes and seconds before that."""
    assert clock_words(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1250001.0, "1250001"), (40_000_000, "40000000"), (1.5, "1.5"), (float("nan"), "nan"), (1e308, "1e+308")],
)
def test_a_whole_number_has_all_its_digits(number: float, words: str) -> None:
    """Steps of long jobs are looked up."""
    assert count_words(number) == words


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 4, "abc…"),
        ("中文字", 5, "中文…"),
        ("\x1b[31mabcdef\x1b[0m", 4, "\x1b[31mabc…\x1b[0m"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_text_that_is_cut_says_so(text: str, columns: int, shown: str) -> None:
    """With a mark in the last column."""
    assert shorten(text, columns) == shown
    assert display_width(shown) <= columns


@pytest.mark.parametrize(("columns", "shown"), [(40, "node-a-0001"), (9, "node…0001"), (2, "n…"), (1, "…")])
def test_a_name_keeps_its_end(columns: int, shown: str) -> None:
    """Names of hosts differ there."""
    assert shorten_middle("node-a-0001", columns) == shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("", [""]),
        ("the quick brown fox", ["the quick", "brown fox"]),
        ("/a/path/without/spaces", ["/a/path/wi", "thout/spac", "es"]),
        ("a /path/without/spaces", ["a /path/wi", "thout/spac", "es"]),
        ("中文中文中文", ["中文中文中", "文"]),
        ("\x1b[31mthe quick brown\x1b[0m fox", ["\x1b[31mthe quick\x1b[0m", "\x1b[31mbrown\x1b[0m fox"]),
    ],
)
def test_a_long_line_is_wrapped(text: str, lines: list[str]) -> None:
    """Between words where that loses little room; a colour goes on in the next line."""
    assert wrap(text, 10) == lines
