"""Two tables side by side: by host and device, not by line."""

from __future__ import annotations

from collections.abc import Iterator

from mslaunch.ranktable.model import Device, RankTable


def differences(old: RankTable, new: RankTable) -> Iterator[str]:
    """Yield one sentence for everything in which two tables differ."""
    if old.version != new.version:
        yield f"version {old.version} became {new.version}"
    before, after = _places(old), _places(new)
    for place in before:
        if place not in after:
            yield f"{_words(place)}: gone (was rank {before[place].rank_id})"
    for place, device in after.items():
        if place not in before:
            yield f"{_words(place)}: new (rank {device.rank_id})"
            continue
        was = before[place]
        for name in ("rank_id", "device_ip", "super_device_id"):
            if getattr(was, name) != getattr(device, name):
                yield f"{_words(place)}: {name} {getattr(was, name)} became {getattr(device, name)}"


def _places(table: RankTable) -> dict[tuple[str, int], Device]:
    return {(server.server_id, device.device_id): device for server in table.servers for device in server.devices}


def _words(place: tuple[str, int]) -> str:
    return f"{place[0]} device {place[1]}"
