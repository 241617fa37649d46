"""Numbers of things in sentences: `1 rank`, `3 ranks`, `ranks 0-2,5`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mslaunch.ranges import format_ranges


def plural(word: str, count: int) -> str:
    """The word, with an s unless it stands for one thing."""
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


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


def describe_held(held: Mapping[int, str]) -> list[str]:
    """Name the devices that other runs use, by who uses them, and the ways out."""
    users: dict[str, list[int]] = {}
    for device, who in held.items():
        users.setdefault(who, []).append(device)
    fix = "Wait, name others with --devices or --hosts, or give --share-devices."
    return [f"device {format_ranges(sorted(devices))} is used by {who}. {fix}" for who, devices in users.items()]
