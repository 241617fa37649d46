"""How long it takes to make and check a very large rank table."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.measure import Row, medians
from mslaunch.ranktable.servers import Device, RankTable, Server, number
from mslaunch.ranktable.versions import validate, write_table


def ten_thousand_devices() -> Iterator[Row]:
    """10,000 devices on 1,250 hosts, generated and validated."""
    took = medians({"mslaunch": _generate_and_validate})["mslaunch"]
    yield Row("rank table of 10,000 devices, made and checked", f"{took:.2f} s", "", took, 1.0, "s")


def _generate_and_validate() -> float:
    start = time.perf_counter()
    servers = (
        Server(f"10.{i // 250:03d}.{i % 250:03d}.1", tuple(Device(d, device_ip=_address(i, d)) for d in range(8)))
        for i in range(1250)
    )
    findings = validate(write_table(RankTable("bench", "1.0", number(servers))))
    if findings:
        raise RuntimeError(findings[0].words("bench"))
    return time.perf_counter() - start


def _address(host: int, device: int) -> str:
    return f"192.{168 + device}.{host // 250}.{host % 250 + 1}"
