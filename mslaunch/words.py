"""Numbers of things in sentences (`1 rank`, `3 ranks`, `ranks 0-2,5`), and texts that are too long for them."""

from __future__ import annotations

from collections.abc import Collection

from mslaunch.ranges import format_ranges


def plural(word: str, count: int) -> str:
    """The word, with an s unless it stands for one thing."""
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


def named_ranks(ranks: Collection[int]) -> str:
    """`rank 3`, or `ranks 0-2,5`."""
    return f"{plural('rank', len(ranks))} {format_ranges(ranks)}"


def cut_middle(text: str, limit: int, rest: str = "") -> str:
    """Return a text of at most about `limit` characters: its beginning and its end, and how much was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"... {len(text) - 2 * half} characters left out{rest} ..."
    return f"{text[:half]}\n{left_out}\n{text[-half:]}"
