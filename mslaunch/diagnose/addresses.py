"""Which device has which address: from rank tables and hccn_tool's output that stand beside the logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mslaunch.diagnose.identity import read_name
from mslaunch.diagnose.reading import Read
from mslaunch.diagnose.sources import Source
from mslaunch.diagnose.waiting import Place
from mslaunch.errors import RankTableUnreadable
from mslaunch.ranktable.versions import read_table

_MOST_TABLES = 64
_LARGEST_TABLE = 4 << 20


def from_tables(sources: Sequence[Source]) -> Iterator[Place]:
    """Read every rank table among the files; a JSON file that is none is left alone."""
    small = [source for source in sources if source.name.endswith(".json") and source.size <= _LARGEST_TABLE]
    for source in small[:_MOST_TABLES]:
        text = source.read_text(_LARGEST_TABLE)
        if not text or '"server_list"' not in text:
            continue
        try:
            table = read_table(text, source.shown)
        except RankTableUnreadable:
            continue
        for server in table.servers:
            for device in server.devices:
                yield Place(server.server_id, device.device_id, device.device_ip, device.rank_id)


def from_hccn_tool(reads: Sequence[Read]) -> Iterator[Place]:
    """Read what hccn_tool printed for each device of a host: its number, and then its address."""
    for read in reads:
        device = None
        for fact in read.findings.facts:
            if fact.kind == "address":
                if "device" in fact.values:
                    device = int(fact.values["device"])
                elif device is not None:
                    yield Place(read_name(read.source.name).host, device, fact.values["address"])
