"""Rank tables: reading, writing, generating, validating, merging, comparing."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mslaunch.errors import RankTableUnreadable, RequestError
from mslaunch.hosts import Host
from mslaunch.ranktable import generate
from mslaunch.ranktable.repair import differences, repair
from mslaunch.ranktable.servers import Device, RankTable, Server, merge, number
from mslaunch.ranktable.versions import VERSIONS, read_table, validate, write_table
from tests.conftest import MSLAUNCH, ROOT, Bench

SAMPLES = sorted((ROOT / "rank_tables").glob("*.json"))
TWO = (ROOT / "rank_tables" / "v1.0_2x8.json").read_text()
POD = (ROOT / "rank_tables" / "v1.2_4x16.json").read_text()


@st.composite
def tables(draw: st.DrawFn) -> RankTable:
    """Tables of 1 to 5 unequal servers, with addresses of one family, in any version's reach."""
    family = draw(st.sampled_from(["192.168.{}.{}", "fd00::{}:{}"]))
    servers = []
    for index in range(draw(st.integers(1, 5))):
        ids = draw(st.sets(st.integers(0, 31), min_size=1, max_size=16))
        devices = tuple(Device(i, 0, family.format(index, i + 1), str(index * 100 + i)) for i in sorted(ids))
        servers.append(Server(f"10.0.0.{index + 1}", devices, str(index // 2)))
    return RankTable("t.json", "1.0", number(servers))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_are_valid_and_what_their_names_say(path: Path) -> None:
    """v1.0_2x8.json is version 1.0 with two servers of eight devices, and nothing is wrong with it."""
    table = read_table(path.read_text(), path.name)
    version, _, shape = path.stem.removeprefix("v").partition("_")
    servers, devices = map(int, shape.split("x"))
    assert table.version == version
    assert len(table.entries) == servers * devices
    assert len({entry.server for entry in table.entries}) == servers
    assert validate(path.read_text(), name=path.name) == []


@given(tables(), st.sampled_from(sorted(VERSIONS)))
def test_what_is_generated_is_valid_and_read_back(table: RankTable, version: str) -> None:
    """In every version: no finding, and the same ranks on the same devices."""
    text = write_table(table, version)
    assert [finding for finding in validate(text) if finding.severity == "error"] == []
    assert read_table(text, "t.json").entries == table.entries


@given(tables(), st.integers(1, 4))
def test_merging_what_was_split_gives_the_whole(table: RankTable, cut: int) -> None:
    """Servers of two tables, renumbered, are those of one; super pods are kept."""
    parts = [table.servers[:cut], table.servers[cut:]]
    split = [RankTable(f"{i}.json", "1.2", number(part)) for i, part in enumerate(parts) if part]
    assert merge(split).servers == table.servers


CORRUPTIONS: dict[str, Any] = {
    "a number for a text": lambda t, s, d: d.update(rank_id=int(d["rank_id"])),
    "a device id as a number": lambda t, s, d: d.update(device_id=int(d["device_id"])),
    "no rank id": lambda t, s, d: d.pop("rank_id"),
    "no device id": lambda t, s, d: d.pop("device_id"),
    "a rank id too high": lambda t, s, d: d.update(rank_id="9999"),
    "a rank id that is no number": lambda t, s, d: d.update(rank_id="x"),
    "an address that is none": lambda t, s, d: d.update(device_ip="300.1.1.1"),
    "an address as a number": lambda t, s, d: d.update(device_ip=5),
    "a port that is none": lambda t, s, d: d.update(device_port="70000"),
    "no devices": lambda t, s, d: s.update(device=[]),
    "no server id": lambda t, s, d: s.pop("server_id"),
    "a server id too long": lambda t, s, d: s.update(server_id="x" * 65),
    "a wrong count": lambda t, s, d: t.update(server_count="77"),
    "no count": lambda t, s, d: t.pop("server_count"),
    "no status": lambda t, s, d: t.pop("status"),
    "a wrong status": lambda t, s, d: t.update(status="ready"),
    "no version": lambda t, s, d: t.pop("version"),
    "a wrong version": lambda t, s, d: t.update(version="9.9"),
    "a version as a number": lambda t, s, d: t.update(version=1.0),
    "no servers": lambda t, s, d: t.update(server_list=[]),
    "a device twice": lambda t, s, d: s["device"].append(copy.deepcopy(d)),
    "a server twice": lambda t, s, d: t["server_list"].append(copy.deepcopy(s)),
    "a device that is no object": lambda t, s, d: s["device"].append(3),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=10)
@given(tables(), st.randoms(use_true_random=False))
def test_any_single_corruption_is_found(name: str, table: RankTable, chance: random.Random) -> None:
    """Whatever is broken in a valid table, wherever it is, is an error with a place."""
    raw = json.loads(write_table(table))
    server = chance.choice(raw["server_list"])
    CORRUPTIONS[name](raw, server, chance.choice(server["device"]))
    errors = [finding for finding in validate(json.dumps(raw, indent=1)) if finding.severity == "error"]
    assert errors
    assert all(finding.fix and finding.line >= 1 for finding in errors)


def test_findings_have_line_column_code_and_fix() -> None:
    """All at once, in the order of the text."""
    text = TWO.replace('"rank_id": "9"', '"rank_id": 9').replace('"server_count": "2"', '"server_count": "3"')
    words = [finding.words("t.json") for finding in validate(text)]
    assert words == [
        "t.json:3:19: error: server_count: server_count must be '2', got '3' (HCCL: EI0004). Write \"2\".",
        "t.json:63:22: error: server_list[1].device[1].rank_id: rank_id must be a text, got the number 9: "
        'HCCL says it is not string (HCCL: EI0014). Write "9".',
    ]
    assert text.splitlines()[62][21] == "9"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"192.168.101.5"', '"192.168.101.1"', "device_ip 192.168.101.1 stands twice"),
        ('"10.0.0.2"', '"10.0.0.1"', "server_id '10.0.0.1' stands twice"),
        ('"rank_id": "3"', '"rank_id": "2"', "rank_id 2 stands twice"),
        ('"192.168.101.5"', '"fd00::1"', "IPv4 and IPv6 addresses are mixed"),
        ('"status": "completed"', '"status": "initializing"', "waits up to 30 minutes"),
        ('"10.0.0.1"', '"10.0.0.9"', "dictionary order"),
        ('"device_ip": "192.168.100.1",', "", "device_ip is missing"),
    ],
)
def test_rules_of_version_1_0(old: str, new: str, words: str) -> None:
    """Each rule is broken once, and found."""
    assert old in TWO
    assert any(words in finding.what for finding in validate(TWO.replace(old, new, 1)))


def test_ranks_follow_the_order_of_the_servers() -> None:
    """Ranks that interleave across servers are refused."""
    text = TWO.replace('"rank_id": "3"', '"rank_id": "x"').replace('"rank_id": "12"', '"rank_id": "3"')
    assert any("do not follow the order" in f.what for f in validate(text.replace('"rank_id": "x"', '"rank_id": "12"')))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["super_pod_list"][0]["server_list"].pop(), "is in no super pod"),
        (lambda t: t["super_pod_list"][1]["server_list"].append({"server_id": "10.0.0.1"}), "is in two super pods"),
        (lambda t: t["super_pod_list"][1]["server_list"].append({"server_id": "9"}), "is not in server_list"),
        (lambda t: t["super_pod_list"][1].update(super_pod_id="0"), "super_pod_id '0' stands twice"),
        (lambda t: t["server_list"][0]["device"][0].pop("super_device_id"), "super_device_id must be"),
        (lambda t: t.pop("super_pod_list"), "super_pod_list must be"),
        (lambda t: t["super_pod_list"].reverse(), "do not stand together"),
    ],
)
def test_rules_of_version_1_2(change: Any, words: str) -> None:
    """Super pods: unique, complete, contiguous."""
    raw = json.loads(POD)
    change(raw)
    assert any(words in finding.what for finding in validate(json.dumps(raw)))


def test_rules_of_the_910a() -> None:
    """1, 2, 4 or 8 devices, and only some sets of four."""
    three, odd, even = ((Host("a", "10.0.0.1", ids),) for ids in ((0, 1, 2), (0, 1, 2, 4), (0, 2, 4, 6)))
    addresses = {i: f"192.168.1.{i + 1}" for i in range(8)}
    found = [validate(write_table(generate.from_hosts(hosts, addresses)), "910a") for hosts in (three, odd, even)]
    assert "1, 2, 4 or 8 devices" in found[0][0].what
    assert "0124 cannot work together" in found[1][0].what
    assert found[2] == []
    assert validate(write_table(generate.from_hosts(three, addresses)), "910b") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(rank_count=9), "rank_count must be the number 8"),
        (lambda t: t["rank_list"][0].update(rank_id="0"), "rank_id must be a number"),
        (lambda t: t["rank_list"][0].pop("local_id"), "local_id must be a number"),
        (lambda t: t["rank_list"][1].update(rank_id=0), "rank_id 0 stands twice"),
        (lambda t: t["rank_list"][0]["level_list"][0].update(net_layer=8), "net_layer is 0 to 7"),
        (lambda t: t["rank_list"][0]["level_list"][0].update(net_type="x"), "net_type is TOPO_FILE_DESC or CLOS"),
        (lambda t: t["rank_list"][0]["level_list"][0].pop("net_instance_id"), "net_instance_id must be a text"),
        (lambda t: t["rank_list"][0]["level_list"][0]["rank_addr_list"][0].update(addr_type="x"), "addr_type is EID"),
        (lambda t: t["rank_list"][0]["level_list"][0]["rank_addr_list"][0].update(ports=[0]), "ports is a list of"),
    ],
)
def test_rules_of_version_2_0(change: Any, words: str) -> None:
    """Numbers instead of texts, levels and addresses."""
    raw = json.loads((ROOT / "rank_tables" / "v2.0_1x8.json").read_text())
    change(raw)
    assert any(words in finding.what for finding in validate(json.dumps(raw)))


@pytest.mark.parametrize(("name", "version"), [("server_list", "1.0"), ("super_pod_list", "1.2"), ("rank_list", "2.0")])
def test_a_table_without_its_version_is_told_which_one_it_needs(name: str, version: str) -> None:
    """By the list that it has; only tables with group_list have no version."""
    raw: dict[str, list[object]] = {name: [], "server_list": []} if name == "super_pod_list" else {name: []}
    first = validate(json.dumps(raw))[0]
    assert (first.what, first.fix) == (
        f"version is missing: a table with {name} is of version {version}",
        f'Add "version": "{version}".',
    )
    with pytest.raises(RequestError, match=f"version is missing: a table with {name} is of version {version}"):
        read_table(json.dumps(raw), "t.json")


def test_a_version_that_is_not_known_here_is_not_called_wrong() -> None:
    """HCCL takes heterogeneous tables (1.1); their rules are not written down anywhere that we know."""
    (finding,) = validate('{"version": "1.1"}')
    assert finding.severity == "warning"


def test_a_huge_file_is_told_from_its_beginning(bench: Bench) -> None:
    """100 MB are not read into memory to say that they are no table."""
    with (bench.folder / "huge.json").open("wb") as file:
        file.truncate(100 << 20)
    code = (
        "import resource, subprocess, sys\nsubprocess.run(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    command = [sys.executable, "-c", code, MSLAUNCH, "rank-table", "validate", "huge.json"]
    done = subprocess.run(command, cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    said, megabytes = done.stdout.splitlines()
    assert "over 16 MB is no rank table" in said
    assert int(megabytes) < 200


def test_a_table_is_compared_with_the_size_of_a_job() -> None:
    """--workers."""
    assert "the table has 16 ranks, the job has 8" in validate(TWO, workers=8)[0].what
    assert validate(TWO, workers=16) == []


FIELDS = [
    *("version", "status", "server_list", "server_count", "device", "device_id", "rank_id", "device_ip", "server_id"),
    *("super_pod_list", "super_pod_id", "group_list", "instance_list", "devices", "rank_list", "level_list"),
    *("rank_addr_list", "net_layer", "rank_count"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=40,
)


@given(JSON, st.sampled_from(["1.0", "1.2", "2.0", None]))
def test_no_json_makes_it_stumble(raw: Any, version: str | None) -> None:
    """Wrong types anywhere are findings, never tracebacks."""
    if isinstance(raw, dict) and version:
        raw["version"] = version
    findings = validate(json.dumps(raw))
    assert all(finding.words("t") for finding in findings)
    with pytest.raises(RankTableUnreadable):
        read_table(json.dumps({"x": raw}), "t.json")


NO_TABLES = {
    "empty": "",
    "bottomless": "[" * 100_000,
    "deep": '{"a":' * 50_000,
    "long number": "9" * 10_000,
    "NUL": "\0",
    "NaN": '{"a": NaN}',
    "twice": '{"a": 1, "a": 2}',
    "cut": "nul",
    "huge": "x" * (17 << 20),
}


@pytest.mark.parametrize("kind", NO_TABLES)
def test_what_is_no_table_is_one_finding(kind: str) -> None:
    """Broken, bottomless, huge or repeated input."""
    text = NO_TABLES[kind]
    assert len(validate(text)) == 1
    with pytest.raises(RankTableUnreadable, match=r"t\.json: not a rank table"):
        read_table(text, "t.json")


def test_what_is_safe_is_repaired() -> None:
    """Numbers become texts, counts and order are set right, and what was changed is said."""
    raw = json.loads(TWO)
    raw.update(server_count=3, status="x")
    raw["server_list"][0]["device"][0].update(rank_id=5, device_id=0)
    fixed, changes = repair(raw)
    assert validate(json.dumps(fixed)) == []
    assert json.dumps(fixed, indent=2) + "\n" == TWO
    assert changes == [
        "3 numbers became texts",
        "server_count '3' became '2'",
        "status 'x' became 'completed'",
        "ranks were renumbered 0 to 15 in the order of the servers",
    ]
    assert repair(fixed) == (fixed, [])
    assert repair([1]) == ([1], [])


def test_merging_refuses_what_does_not_fit() -> None:
    """A server or an address in two tables, and mixed versions."""
    one = read_table(TWO, "one.json")
    with pytest.raises(RequestError, match=r"server 10\.0\.0\.1 is in one\.json and in two\.json"):
        merge([one, replace(one, name="two.json")])
    with pytest.raises(RequestError, match="of one version"):
        merge([one, replace(one, name="two.json", version="1.2")])
    moved = replace(one, name="two.json", servers=tuple(replace(s, server_id=s.server_id + "0") for s in one.servers))
    with pytest.raises(RequestError, match="address 192"):
        merge([one, moved])


def test_tables_are_compared_by_host_and_device() -> None:
    """Order and layout do not matter; ranks and addresses do."""
    old = read_table(TWO, "a.json")
    first, second = old.servers
    new = RankTable("b.json", "1.0", number([second, replace(first, devices=first.devices[:7])]))
    found = list(differences(old, new))
    assert "10.0.0.1 device 7: gone (was rank 7)" in found
    assert "10.0.0.2 device 0: rank_id 8 became 0" in found
    assert list(differences(old, old)) == []


def test_hccl_tools_spellings() -> None:
    """Ranges with blanks and numbers of two digits, which hccl_tools reads by character."""
    assert generate.parse_device_num("[0, 8)") == tuple(range(8))
    assert generate.parse_device_num("[8,16)") == tuple(range(8, 16))
    assert generate.parse_device_num("0,2-3") == (0, 2, 3)
    with pytest.raises(RequestError, match="is empty"):
        generate.parse_device_num("[4,4)")
    table = generate.from_hosts((Host("a", "10.0.0.1", (0, 1)),))
    assert generate.auto_name(table) == "hccl_2p_01_10.0.0.1.json"


def test_a_byte_order_mark_is_read_over_and_a_last_comma_is_named(bench: Bench) -> None:
    """Editors on Windows write the one, people the other."""
    table = (ROOT / "rank_tables" / "standard_1x8.json").read_text()
    (bench.folder / "t.json").write_text(table, encoding="utf-8-sig")
    assert bench.mslaunch("rank-table", "validate", "t.json").returncode == 0
    (bench.folder / "t.json").write_text('{"version": "1.0",\n "status": "completed",\n}\n', encoding="utf-8-sig")
    assert (
        "t.json:2:23: error: the table: not JSON: a comma stands"
        in bench.mslaunch("rank-table", "validate", "t.json").stdout
    )
