"""Rank tables as the launcher reads and writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mslaunch.errors import RankTableUnreadable
from mslaunch.plan.model import Host
from mslaunch.ranktable.generate import from_hosts
from mslaunch.ranktable.model import Entry
from mslaunch.ranktable.versions import read_table, write_table
from tests.conftest import ROOT

SAMPLES = sorted((ROOT / "rank_tables").glob("*.json"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_hold_what_their_names_say(path: Path) -> None:
    """v1.0_2x8.json is version 1.0 with two servers of eight devices."""
    table = read_table(path.read_text(), path.name)
    version, _, shape = path.stem.removeprefix("v").partition("_")
    servers, devices = map(int, shape.split("x"))
    assert table.version == version
    assert len(table.entries) == servers * devices
    assert len({entry.server for entry in table.entries}) == servers


def test_what_is_generated_is_read_back() -> None:
    """Servers in the order given, ranks contiguous, unequal servers allowed."""
    hosts = (Host("b", "10.0.0.2", (0, 6)), Host("a", "10.0.0.1", (3,)))
    table = read_table(write_table(from_hosts(hosts)), "t.json")
    assert table.entries == (Entry(0, "10.0.0.2", 0), Entry(1, "10.0.0.2", 6), Entry(2, "10.0.0.1", 3))


def test_the_oldest_form_numbers_ranks_by_server_and_device() -> None:
    """A table without version has group_list and no rank ids."""
    devices = [{"device_id": "1", "device_ip": "1.1.1.2"}, {"device_id": "0", "device_ip": "1.1.1.1"}]
    group = {"instance_list": [{"server_id": "10.0.0.1", "devices": devices}]}
    table = read_table(json.dumps({"status": "completed", "group_list": [group]}), "t.json")
    assert [entry.device_id for entry in table.entries] == [0, 1]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"version": "3.0"}', '{"version": "1.0"}', '{"version": "1.0", "server_list": []}', "[" * 9999],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    """Never a traceback, whatever is in the file."""
    with pytest.raises(RankTableUnreadable, match=r"t\.json: not a rank table"):
        read_table(text, "t.json")


def test_rank_ids_must_be_complete() -> None:
    """A gap or a repetition is refused before the job is started."""
    text = write_table(from_hosts((Host("a", "10.0.0.1", (0, 1)),))).replace('"rank_id": "1"', '"rank_id": "2"')
    with pytest.raises(RankTableUnreadable, match="rank ids are not exactly 0 to 1"):
        read_table(text, "t.json")
