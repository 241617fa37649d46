"""Lists of small numbers as people write them: `0-3,6`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from mslaunch.errors import RequestError

MOST = 65536
"""As many ranks as HCCL takes; also of devices on one host."""
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_ranges(text: str, what: str) -> tuple[int, ...]:
    """Read `0-3,6` or `[0-3,6]` in the order given; a number named twice or a falling range is an error."""
    numbers: list[int] = []
    for part in text.strip().removeprefix("[").removesuffix("]").split(","):
        match = _PART.fullmatch(part.strip())
        if not match:
            raise RequestError(f'{what}: {part.strip()!r} is not a number or a range. Write for example "0-3,6".')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise RequestError(f'{what}: {part.strip()!r} runs backwards. Write "{last}-{first}".')
        if len(numbers) + last - first >= MOST:
            raise RequestError(f"{what}: it names more than {MOST} numbers. Name fewer.")
        numbers.extend(range(first, last + 1))
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        raise RequestError(f"{what}: {format_ranges(twice)} is named twice in {text!r}. Name each once.")
    return tuple(numbers)


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers the way parse_ranges reads them, sorted."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
