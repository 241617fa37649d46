"""Numbers of things in sentences (`1 rank`, `3 ranks`, `ranks 0-2,5`), and texts that are too long for them."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping

from mslaunch.ranges import format_ranges

# Everything that makes a terminal do something, or shows text in another order than it is written in; not tabs.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")
_TOKEN = re.compile("\x1b\\[[0-9;:]*m|.", re.DOTALL)
_NO_COLOUR = "\x1b[0m"
_RESETS = (_NO_COLOUR, "\x1b[m")
# What progress bars send besides: erase the line, go up to the line of another bar, hide the cursor, synchronise.
_BAR_CONTROL = re.compile("\x1b\\[(?:[0-9;]*[AK]|\\?[0-9;]*[hl])")
_NO_WIDTH = ("Mn", "Me", "Cf")
_LARGEST_COUNT = 1e15
_NOTE = 80  # room for what says that something was left out


def counted(count: int, word: str) -> str:
    """`1 rank`, `3 ranks`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def command_words(*argv: str) -> str:
    """Return a command in backquotes that does nothing else when it is pasted, whatever its words hold."""
    return f"`{shlex.join(argv)}`"


def limit_of_wait(seconds: float) -> str:
    """`600 s` as it was typed, and `168 h` for what nobody counts in seconds."""
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{max(seconds, 0.0):.0f} s"


def seconds_words(seconds: float) -> str:
    """A short time with three digits: `1.2 ms`, `250 ms`, `3.4 s`; all digits of a long one."""
    number, unit = (seconds, "s") if seconds >= 0.9995 else (1000 * seconds, "ms")
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def clock_words(seconds: float) -> str:
    """A time that runs: `0:49`, and `1:02:03` from one hour on."""
    hours, rest = divmod(max(0, int(seconds)), 3600)
    minutes = f"{hours}:{rest // 60:02d}" if hours else str(rest // 60)
    return f"{minutes}:{rest % 60:02d}"


def elapsed_words(seconds: float) -> str:
    """A time that something takes, always with hours: `0:00:49`."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def count_words(number: float) -> str:
    """A number that counts: all digits of a whole one, `1.5` of another."""
    is_whole = abs(number) < _LARGEST_COUNT and number == int(number)
    return str(int(number)) if is_whole else f"{number:g}"


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
    return f"rank {format_ranges(ranks)}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"


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
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


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


def _columns(token: str) -> int:
    """Return how many columns a character takes; a colour takes none."""
    if len(token) > 1 or unicodedata.category(token) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(token) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """Return as much of a plain text as fits into so many columns; colours do not count."""
    text = text.expandtabs()
    if display_width(text) <= columns:
        return text
    tokens, left = [], columns
    for token in _TOKEN.findall(text):
        left -= _columns(token)
        if left < 0:
            break
        tokens.append(token)
    return "".join(tokens) + (_NO_COLOUR if _COLOUR.search(text) else "")


def shorten(text: str, columns: int) -> str:
    """Return a plain text that fits into so many columns; a text that is cut ends in `…`."""
    text = text.expandtabs()
    if display_width(text) <= columns or columns < 1:
        return fit(text, columns)
    cut = fit(text, columns - 1)
    return f"{cut.removesuffix(_NO_COLOUR)}…{_NO_COLOUR}" if _COLOUR.search(text) else f"{cut}…"


def shorten_middle(text: str, columns: int) -> str:
    """Return the beginning and the end of a text without colours that is too wide, with `…` between them."""
    if display_width(text) <= columns or columns < 3:
        return shorten(text, columns)
    tail = fit(text[::-1], columns // 2)[::-1]
    return f"{fit(text, columns - 1 - display_width(tail))}…{tail}"


def wrap(line: str, columns: int) -> list[str]:
    """Return a plain line as lines that fit into so many columns, broken at a space where one is near the end."""
    text = line.expandtabs()
    if columns < 2 or display_width(text) <= columns:
        return [shorten(text, columns)]
    lines: list[str] = []
    piece: list[str] = []
    width = 0
    for token in _TOKEN.findall(text):
        if width + _columns(token) > columns:
            head, piece = _break(piece, token, columns)
            lines.append("".join(head).rstrip() + (_NO_COLOUR if (colours := _open_colours(head)) else ""))
            piece = [*colours, *piece]
            width = sum(map(_columns, piece))
            if token == " ":  # the break stands for it
                continue
        piece.append(token)
        width += _columns(token)
    return [*lines, "".join(piece)]


def _break(piece: list[str], following: str, columns: int) -> tuple[list[str], list[str]]:
    """Break a piece of a line after its last space, unless much room would be lost by that."""
    at = len(piece)
    while at and piece[at - 1] != " " and following != " ":
        at -= 1
    is_near = sum(map(_columns, piece[:at])) > columns * 2 // 3
    return (piece[:at], piece[at:]) if is_near else (piece, [])


def _open_colours(piece: list[str]) -> list[str]:
    """Return the colours that are still on at the end of a piece of a line."""
    colours: list[str] = []
    for token in piece:
        if len(token) > 1:
            colours = [] if token in _RESETS else [*colours, token]
    return colours


def cut_line(line: str, limit: int) -> str:
    """Return the beginning of a line that is too long, and how much of it was left out."""
    return line if len(line) <= limit else f"{line[:limit]} ... {len(line) - limit} characters left out, see the log"


def first_line(text: str, limit: int = 300) -> str:
    """Return the first line of a text, for a sentence."""
    return cut_line(plain((text[: 2 * limit].splitlines() or [""])[0]), limit)


def describe_limit(by: str, files: Collection[int | None], there: int, target: str) -> str:
    """Say what hides devices of a machine, how many are left, and which, by their numbers on the machine."""
    numbers = "" if None in files or not files else f" ({','.join(map(str, files))})"
    return f"{plain(by)} shows {len(files)} of {counted(there, f'{target} device')}{numbers}"


def describe_held(held: Mapping[int, str]) -> list[str]:
    """Name the devices that other runs use, by who uses them, and the ways out."""
    users: dict[str, list[int]] = {}
    for device, who in held.items():
        users.setdefault(who, []).append(device)
    fix = "Wait, name others with --devices or --hosts, or give --share-devices."
    return [f"device {format_ranges(sorted(devices))} is used by {who}. {fix}" for who, devices in users.items()]
