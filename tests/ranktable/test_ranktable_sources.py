"""Where rank tables come from and go to: a cluster in YAML, hostfiles, the host itself, the command line, jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.hosts import Host, parse_hostfile, parse_hosts
from mslaunch.ranktable import generate
from mslaunch.ranktable.generate import probe
from mslaunch.ranktable.servers import Device, Entry, Server
from mslaunch.ranktable.versions import write_table
from tests.conftest import ROOT, Bench

TWO = (ROOT / "rank_tables" / "v1.0_2x8.json").read_text()


def test_a_clusters_yaml_gives_addresses_and_super_pods() -> None:
    """One file for all hosts."""
    device = {"device_ip": "192.168.1.1", "super_device_id": 7}
    raw = {
        "hosts": [{"address": "10.0.0.1", "devices": {0: device}, "super_pod": 0}, {"address": "n2", "devices": "2-3"}]
    }
    table = generate.from_cluster(raw, "c.yaml")
    assert table.servers[0] == Server("10.0.0.1", (Device(0, 0, "192.168.1.1", "7"),), "0")
    assert table.entries[1:] == (Entry(1, "n2", 2), Entry(2, "n2", 3))
    with pytest.raises(RequestError, match="n2 has no super pod"):
        write_table(table, "1.2")
    wrongs: list[Any] = [{}, [], {"hosts": [{}]}, {"hosts": [{"address": "a", "devices": []}]}]
    wrongs += [{"hosts": [{"address": 1, "devices": {"x": 1}}]}]
    for wrong in wrongs:
        with pytest.raises(RequestError, match=r"c\.yaml"):
            generate.from_cluster(wrong, "c.yaml")


def test_hostfiles() -> None:
    """Open MPI's spelling, with comments; a line that cannot be read is named."""
    assert parse_hostfile("# all\nn1 slots=2\n\nn2 slots=1 max_slots=4 # x\nn3\n", "h") == parse_hosts("n1:2,n2:1,n3")
    for text, words in (
        ("n1 slots=-1", "h:1"),
        ("n1 slots=x", "h:1"),
        ("", "names no host"),
        ("n1\nn1", "n1 is named twice"),
    ):
        with pytest.raises(RequestError, match=words):
            parse_hostfile(text, "h")


HCCN_CONF = "address_0=192.168.100.101\nnetmask_0=255.255.255.0\naddress_1=192.168.101.101\nnetdetect_0=192.168.100.1\n"
# What the tools print on an Ascend host, as their manuals show it; no NPU was asked.
HCCN_TOOL = "ipaddr:192.168.100.101\nnetmask:255.255.255.0\n"
SPOD_INFO = "\tNPU ID                         : 0\n\tChip Count : 1\n\n\tSDID                           : 65536\n"


def test_a_host_is_probed_by_conf_tool_and_devices() -> None:
    """hccn.conf first; without it, /dev and hccn_tool; nothing at all is said with the fix."""
    answers = {"cat": HCCN_CONF, "npu-smi": SPOD_INFO}
    found = probe(lambda command: answers.get(command[0]), "h")
    assert found[0] == Device(0, 0, "192.168.100.101", "65536")
    assert [device.device_id for device in found] == [0, 1]
    bare = {"sh": "/dev/davinci3\n/dev/davinci_manager\n", "hccn_tool": HCCN_TOOL}
    assert probe(lambda command: bare.get(command[0]), "h") == (Device(3, 0, "192.168.100.101"),)
    with pytest.raises(NotReadyError, match="h: no Ascend device was found"):
        probe(lambda command: None if command else "", "h")


def test_the_command_line(bench: Bench) -> None:
    """Generate, show, validate, fix, merge, diff and convert, as a user would."""
    bench.write("hccn.conf", HCCN_CONF)
    made = bench.mslaunch(
        "rank-table",
        "generate",
        "--hccn",
        "hccn.conf",
        "--device_num",
        "[0, 2)",
        "--server_ip",
        "10.0.0.1",
        "-o",
        "a.json",
    )
    assert made.returncode == 0, made.stderr
    assert "a.json: valid" in bench.mslaunch("rank-table", "validate", "a.json", "--soc", "910a").stdout
    assert "192.168.101.101" in bench.mslaunch("rank-table", "show", "a.json").stdout
    text = (bench.folder / "a.json").read_text()
    bench.write("b.json", text.replace("10.0.0.1", "10.0.0.2").replace("192.168.10", "192.168.20"))
    assert bench.mslaunch("rank-table", "merge", "a.json", "b.json", "-o", "ab.json").returncode == 0
    assert "ab.json: valid" in bench.mslaunch("rank-table", "validate", "ab.json").stdout
    assert bench.mslaunch("rank-table", "diff", "a.json", "ab.json").returncode == 1
    assert json.loads(bench.mslaunch("rank-table", "convert", "--to", "2.0", "ab.json").stdout)["rank_count"] == 4
    bench.write("bad.json", text.replace('"rank_id": "1"', '"rank_id": 1'))
    bad = bench.mslaunch("rank-table", "validate", "bad.json", "--json")
    assert (bad.returncode, json.loads(bad.stdout)[0]["code"]) == (2, "EI0014")
    fixed = bench.mslaunch("rank-table", "validate", "bad.json", "--fix", "-o", "good.json")
    assert (fixed.returncode, "1 numbers became texts" in fixed.stdout) == (0, True)
    assert "good.json: written\ngood.json: valid\n" in fixed.stdout
    bench.write("worse.json", text.replace('"rank_id": "1"', '"rank_id": 1').replace("192.168.101.101", "no address"))
    left = bench.mslaunch("rank-table", "validate", "worse.json", "--fix", "-o", "better.json")
    (place,) = re.findall(r"^better\.json:(\d+):\d+: error", left.stdout, re.M)
    assert (
        left.returncode,
        "no address" in (bench.folder / "better.json").read_text().splitlines()[int(place) - 1],
    ) == (
        2,
        True,
    )
    twice = bench.mslaunch("rank-table", "validate", "a.json", "b.json", "--fix", "-o", "c.json")
    assert (twice.returncode, "name one FILE" in twice.stderr) == (2, True)
    refused = bench.mslaunch("rank-table", "generate", "--hosts", "n1:x")
    assert (refused.returncode, "--hosts" in refused.stderr) == (2, True)


def test_a_table_of_several_hosts_needs_device_addresses(bench: Bench) -> None:
    """Without them nothing is written, and the message says where they come from; one host needs none."""
    words = ("rank-table", "generate", "--hosts", "10.0.0.1:0-7,10.0.0.2:[0-3]", "-o", "t.json")
    refused = bench.mslaunch(*words)
    assert refused.returncode == 2
    assert "missing (10.0.0.1: device 0-7; 10.0.0.2: device 0-3)" in refused.stderr
    assert "`mslaunch rank-table probe --hosts 10.0.0.1,10.0.0.2`" in refused.stderr
    assert not (bench.folder / "t.json").exists()
    allowed = bench.mslaunch(*words, "--allow-incomplete")
    assert (allowed.returncode, (bench.folder / "t.json").exists()) == (0, True)
    assert "device addresses are missing" in allowed.stderr
    assert bench.mslaunch("rank-table", "generate", "--hosts", "10.0.0.1:0-7", "-o", "one.json").returncode == 0
    assert "one.json: valid" in bench.mslaunch("rank-table", "validate", "one.json", "--soc", "910b").stdout


def test_a_job_on_several_npu_hosts_is_not_given_a_table_without_addresses(bench: Bench) -> None:
    """HCCL would refuse it; the message has the line that writes one."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", "device_target: Ascend\n")
    words = ("--dry-run", "--method", "rank-table", "--hosts", "n1:8,n2:8", "-c", "cfg.yaml")
    done = bench.mslaunch("train", *words)
    assert done.returncode == 2
    assert "`mslaunch rank-table probe --hosts n1,n2 -o table.json`" in done.stderr


def test_train_refuses_a_bad_table_with_its_findings(bench: Bench) -> None:
    """Nothing is started; every finding is told with its place."""
    bench.write("train.py", "print('started')\n")
    bench.write(
        "t.json", TWO.replace('"rank_id": "9"', '"rank_id": 9').replace('"status": "completed"', '"status": "x"')
    )
    done = bench.mslaunch("train", "--rank-table", "t.json", "train.py")
    assert done.returncode == 2
    assert "t.json:63:22: error" in done.stderr
    assert "status must be 'completed'" in done.stderr
    assert not bench.runs.exists()


def test_a_good_table_is_exported_by_every_method(bench: Bench) -> None:
    """RANK_TABLE_FILE names a copy of it, and its devices are used."""
    bench.write("train.py", "import os\nprint(os.environ['RANK_TABLE_FILE'], os.environ['DEVICE_ID'])\n")
    bench.write("t.json", write_table(generate.from_hosts((Host("a", "10.0.0.1", (4, 6)),))))
    for method in ("dynamic", "rank-table"):
        assert bench.mslaunch("train", "--rank-table", "t.json", "--method", method, "train.py").returncode == 0
        path, device = bench.log(1).split()
        assert (Path(path).read_text(), device) == ((bench.folder / "t.json").read_text(), "6")
