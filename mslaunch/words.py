"""Numbers of things in sentences (`1 rank`, `3 ranks`, `ranks 0-2,5`), and texts that are too long for them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping

from mslaunch.ranges import format_ranges

# Everything that makes a terminal do something, or shows text in another order than it is written in; not tabs.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")
_NO_COLOUR = "\x1b[0m"
# What progress bars send besides: erase the line, go up to the line of another bar, hide the cursor, synchronise.
_BAR_CONTROL = re.compile("\x1b\\[(?:[0-9;]*[AK]|\\?[0-9;]*[hl])")
_NO_WIDTH = ("Mn", "Me", "Cf")
_NOTE = 80  # room for what says that something was left out


def plural(word: str, count: int) -> str:
    """The word, with an s unless it stands for one thing."""
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


def limit_of_wait(seconds: float) -> str:
    """`600 s` as it was typed, and `168 h` for what nobody counts in seconds."""
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{max(seconds, 0.0):.0f} s"


def byte_count(size: int) -> str:
    """`512 B`, `1.2 KB`, `96 MB`."""
    number = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def named_ranks(ranks: Collection[int]) -> str:
    """`rank 3`, or `ranks 0-2,5`."""
    return f"{plural('rank', len(ranks))} {format_ranges(ranks)}"


def cut_middle(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters: its beginning and its end, and how much was left out."""
    if len(text) <= limit:
        return text
    half = (limit - _NOTE) // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def plain(text: str) -> str:
    """Return one line that can be printed anywhere: control characters are written as escapes."""
    if not _CONTROL.search(text):
        return text
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def plain_output(line: str, limit: int | None = None) -> str:
    """Return a line of a log for the screen: colours stay, inside the line; what was written over is left out."""
    line = line.rstrip("\r").rpartition("\r")[2]
    line = line if limit is None else cut_line(line, limit)
    if not _CONTROL.search(line):
        return line
    *texts, last = _COLOUR.split(_BAR_CONTROL.sub("", line))
    parts = [text if _COLOUR.fullmatch(text) else plain(text) for text in (*texts, last)]
    return "".join(parts) + (_NO_COLOUR if texts else "")


def display_width(text: str) -> int:
    """Return how many columns of a terminal a plain text takes."""
    if text.isascii():
        return len(_COLOUR.sub("", text))
    return sum(map(_columns, _COLOUR.sub("", text)))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """Return as much of a plain text as fits into so many columns; colours do not count."""
    text = text.expandtabs()
    if display_width(text) <= columns:
        return text
    parts, left = [], columns
    for part in _COLOUR.split(text):
        if _COLOUR.fullmatch(part):
            parts.append(part)
            continue
        for character in part:
            left -= _columns(character)
            if left < 0:
                return "".join(parts) + (_NO_COLOUR if _COLOUR.search(text) else "")
            parts.append(character)
    return "".join(parts)


def cut_line(line: str, limit: int) -> str:
    """Return the beginning of a line that is too long, and how much of it was left out."""
    return line if len(line) <= limit else f"{line[:limit]} ... {len(line) - limit} characters left out, see the log"


def first_line(text: str, limit: int = 300) -> str:
    """Return the first line of a text, for a sentence."""
    return cut_line(plain((text[: 2 * limit].splitlines() or [""])[0]), limit)


def describe_limit(by: str, files: Collection[int | None], there: int, target: str) -> str:
    """Say what hides devices of a machine, how many are left, and which, by their numbers on the machine."""
    known = "" if None in files or not files else f" ({','.join(map(str, files))})"
    return f"{plain(by)} shows {len(files)} of {counted(there, f'{target} device')}{known}"


def describe_held(held: Mapping[int, str]) -> list[str]:
    """Name the devices that other runs use, by who uses them, and the ways out."""
    users: dict[str, list[int]] = {}
    for device, who in held.items():
        users.setdefault(who, []).append(device)
    fix = "Wait, name others with --devices or --hosts, or give --share-devices."
    return [f"device {format_ranges(sorted(devices))} is used by {who}. {fix}" for who, devices in users.items()]
