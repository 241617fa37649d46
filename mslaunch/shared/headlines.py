"""The line of an exception's text that says what went wrong: many of MindSpore's begin with an empty one or a ruler."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_LINES = 200  # of a text, in which such a line is looked for
_RULERS = "-=_*#~+ "
_DATASET = "Exception thrown from "
_PIPELINE, _CALLS = "- Dataset Pipeline Error Message:", "- Python Call Stack:"


def headline(text: str) -> str:
    """Return the first line that says something, behind the type of the exception where that stands alone."""
    lines = text.splitlines()[:MOST_LINES]
    first = lines[0].strip() if lines else ""
    if _DATASET in first and (error := _dataset_error(lines)):
        return f"{first.partition('. ')[0].rstrip('. ')}: {error}"
    if not is_bare(first):
        return first
    telling = next(_telling(lines[1:]), "")
    return f"{first} {telling}" if first.endswith(":") and telling else telling or first


def is_bare(line: str) -> bool:
    """Tell whether a line says nothing by itself, or only the type of an exception, or where to read on."""
    line = line.strip()
    is_type = line.endswith(":") and " " not in line
    return is_type or _is_ruler(line) or _DATASET in line


def with_headline(text: str) -> str:
    """Return a text that begins with its headline."""
    first = headline(text)
    return text if text.partition("\n")[0].strip() == first else f"{first}\n{text}"


def _is_ruler(line: str) -> bool:
    return not line.strip(_RULERS)


def _telling(lines: Sequence[str]) -> Iterator[str]:
    """Return the lines that are neither empty nor a ruler nor the title of a section."""
    for line in map(str.strip, lines):
        if not _is_ruler(line) and not (line.startswith("- ") and line.endswith(":")):
            yield line.replace("[ERROR] ", "", 1)


def _dataset_error(lines: Sequence[str]) -> str:
    """Return what went wrong in a data pipeline: the exception of the script's own function, else MindSpore's words."""
    calls = _section(lines, _CALLS)
    frames = [at for at, line in enumerate(calls) if line.startswith(" ")]
    if frames:
        return next(_telling(calls[frames[-1] + 1 :]), "")
    return next(_telling(_section(lines, _PIPELINE)), "")


def _section(lines: Sequence[str], title: str) -> Sequence[str]:
    start = next((at + 2 for at, line in enumerate(lines) if line.strip() == title), len(lines))
    end = next((at for at in range(start, len(lines)) if lines[at].strip() and _is_ruler(lines[at])), len(lines))
    return lines[start:end]
