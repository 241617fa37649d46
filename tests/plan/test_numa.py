"""Binding ranks to cores and memory: what hosts tell, what is decided from it, and what the kernel then says."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.cli.parsing.msrun_options import bind_numa
from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import HostFacts, NumaFacts, Plan, read_numa
from mslaunch.shared import probe
from mslaunch.shared.messages import NumaAnswer
from tests.conftest import Bench
from tests.plan.test_make import facts_of, spec_of

NVIDIA_SMI_SAMPLE = "0, 00000000:3B:00.0\n1, 00000000:D8:00.0\n"
NPU_CHIPS_SAMPLE = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              0                              Ascend 910B3
\t0                              1                              -                              Mcu
\t1                              0                              1                              Ascend 910B3
\t1                              1                              -                              Mcu
"""
NPU_BOARD_SAMPLE = """\
\tNPU ID                         : {npu}
\tProduct Name                   : IT21HMDB02-B2
\tPCB ID                         : A
\tPCIe Bus Info                  : 0000:{bus}:00.0
\tSlot ID                        : {npu}
\tChip Count                     : 1
"""
BOARDS = ((0, "C1"), (1, "01"))
NPU_TOPO_SAMPLE = """\
\t           NPU0       NPU1       CPU Affinity
\tNPU0       X          HCCS       0-3
\tNPU1       HCCS       X          4-7

Legend:
  X    = Self
"""


def machine(root: Path, nodes: dict[int, str], buses: dict[str, int]) -> str:
    """A sysfs with these nodes, and PCI devices on them."""
    for node, cores in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for bus, node in buses.items():
        folder = root / f"sys/bus/pci/devices/{bus}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return str(root)


def tools(said: dict[str, str]) -> Callable[[list[str]], str]:
    """Tools that print samples, by the beginning of their commands; any other is not there."""
    return lambda words: next((text for start, text in said.items() if " ".join(words).startswith(start)), "")


def test_gpus_are_on_the_nodes_of_their_buses(tmp_path: Path) -> None:
    """nvidia-smi names the bus, sysfs the node."""
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"0000:3b:00.0": 0, "0000:d8:00.0": 1})
    found = probe.numa_facts({}, root, tools({"nvidia-smi": NVIDIA_SMI_SAMPLE}))
    assert found == {
        "nodes": [{"node": 0, "cores": [0, 1, 2, 3]}, {"node": 1, "cores": [4, 5, 6, 7]}],
        "devices": {"Ascend": [], "GPU": [{"device": 0, "node": 0}, {"device": 1, "node": 1}]},
    }


def test_the_nvidia_driver_is_asked_where_its_tool_is_not_there(tmp_path: Path) -> None:
    """/proc names the bus and the number of every device."""
    root = machine(tmp_path, {0: "0", 1: "1"}, {"0000:3b:00.0": 1})
    information = tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA A100\nDevice Minor: \t 2\n")
    assert probe.gpu_nodes(root, tools({})) == {2: 1}


def test_npus_are_on_the_nodes_of_their_boards(tmp_path: Path) -> None:
    """npu-smi names the bus of each card."""
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"0000:c1:00.0": 1, "0000:01:00.0": 0})
    boards = {f"npu-smi info -t board -i {npu}": NPU_BOARD_SAMPLE.format(npu=npu, bus=bus) for npu, bus in BOARDS}
    found = probe.numa_facts({}, root, tools({"npu-smi info -m": NPU_CHIPS_SAMPLE, **boards}))
    assert found["devices"]["Ascend"] == [{"device": 0, "node": 1}, {"device": 1, "node": 0}]


def test_the_cpu_affinity_of_npus_counts_where_the_bus_tells_nothing(tmp_path: Path) -> None:
    """sysfs says -1 on many ARM machines."""
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"0000:c1:00.0": -1})
    board = NPU_BOARD_SAMPLE.format(npu=0, bus="C1")
    said = {"npu-smi info -m": NPU_CHIPS_SAMPLE, "npu-smi info -t board -i 0": board}
    ask = tools({**said, "npu-smi info -t topo": NPU_TOPO_SAMPLE})
    assert probe.npu_nodes(root, probe.node_cores(root), ask) == {0: 0, 1: 1}


@pytest.mark.parametrize("text", ["", "garbage", "x, y\n0, zz\n", "\x00" * 100, "0 0\nNPU0 X -,-\n", "9" * 5000])
def test_what_tools_print_is_never_an_error(tmp_path: Path, text: str) -> None:
    """A version with another output tells nothing."""
    root = machine(tmp_path, {0: "0-3"}, {})
    found = probe.numa_facts({}, root, lambda _: text)
    assert found["nodes"] == [{"node": 0, "cores": [0, 1, 2, 3]}]
    assert probe.parse_list(text) is not None


TWO_NODES = NumaFacts({0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}, {"GPU": {0: 0, 1: 1, 2: 1}})


def plan_for(devices: tuple[int, ...], cores: tuple[int, ...], known: NumaFacts, target: str, **flags: Any) -> Plan:
    host = Host("localhost", "127.0.0.1", devices)
    facts = replace(facts_of(device_target=target), hosts={"localhost": HostFacts("python", cores, known)})
    return make_plan(spec_of(workers=len(devices), **flags), (host,), facts)


def bound(plan: Plan) -> list[tuple[str | None, str | None]]:
    return [(worker.env.get("MSLAUNCH_CORES"), worker.env.get("MSLAUNCH_NUMA_NODE")) for worker in plan.workers]


@pytest.mark.parametrize(
    ("devices", "cores", "target", "expected"),
    [
        ((0, 1), range(8), "GPU", [("0-3", "0"), ("4-7", "1")]),
        ((0, 1, 2), range(8), "GPU", [("0-3", "0"), ("4-5", "1"), ("6-7", "1")]),
        ((1,), (2, 3, 4, 5), "GPU", [("4-5", "1")]),
        ((1, 2), (0, 1, 4), "GPU", [("4", "1"), ("4", "1")]),
        ((0, 1), range(8), "CPU", [("0-3", "0"), ("4-7", "1")]),
        ((0, 1, 2, 3), range(8), "CPU", [("0-1", "0"), ("2-3", "0"), ("4-5", "1"), ("6-7", "1")]),
        ((0,), range(8), "CPU", [("0-3", "0")]),
        ((0, 1), (4, 5, 6, 7), "CPU", [("4-5", "1"), ("6-7", "1")]),
    ],
)
def test_ranks_share_the_cores_of_their_devices_nodes(
    devices: tuple[int, ...], cores: Any, target: str, expected: list[tuple[str, str]]
) -> None:
    """Only cores that may be used; ranks on the CPU are spread over the nodes."""
    plan = plan_for(devices, tuple(cores), TWO_NODES, target, numa=True)
    assert bound(plan) == expected
    assert plan.notes == ()
    assert plan.workers[0].env["OMP_NUM_THREADS"] == str(len(plan_cores(expected[0][0])))


def plan_cores(text: str) -> list[int]:
    return probe.parse_list(text)


def test_ranks_without_a_known_node_get_their_share_of_all_cores() -> None:
    """And that is said."""
    plan = plan_for((0, 5), tuple(range(8)), TWO_NODES, "GPU", numa=True)
    assert bound(plan) == [("0-3", "0"), ("4-7", None)]
    assert "the NUMA node of device 5 is not known" in plan.notes[0]
    plan = plan_for((0, 1), tuple(range(8)), NumaFacts(), "Ascend", numa=True)
    assert bound(plan) == [("0-3", None), ("4-7", None)]
    assert "its NUMA nodes are not known" in plan.notes[0]


@pytest.mark.parametrize(
    ("devices", "core_map", "expected"),
    [
        ((4, 5), '{"4": ["0-1"], "5": ["2", "3"]}', ["0-1", "2-3"]),
        ((4, 5), '{"device4": ["0-1"]}', ["0-1", None]),
        ((4, 5), '{"0": "0-1", "1": "2,3"}', ["0-1", "2-3"]),
        ((0, 1), {1: "7", 0: "6"}, ["6", "7"]),
    ],
)
def test_a_map_binds_devices_or_ranks(devices: tuple[int, ...], core_map: Any, expected: list[str | None]) -> None:
    """As msrun's dictionary; numbers that are not devices are ranks."""
    plan = plan_for(devices, tuple(range(8)), NumaFacts(), "GPU", core_map=core_map)
    assert [cores for cores, _ in bound(plan)] == expected


def test_a_core_that_is_not_there_is_refused() -> None:
    """With those that are."""
    with pytest.raises(RequestError, match=r"--core-map: core 8-9 cannot be used on localhost; there are 0-7\."):
        plan_for((0,), tuple(range(8)), NumaFacts(), "GPU", core_map='{"0": "6-9"}')


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": "0"}', '{"0": "x"}', '{"0": {}}', '{"-1": "0"}'])
def test_a_wrong_map_is_one_sentence(bench: Bench, text: str) -> None:
    """Exit code 2, nothing started."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", "-n", "1", f"--core-map={text}")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: --core-map: ")
    assert "Traceback" not in done.stderr
    assert not bench.runs.exists()


def test_answers_are_read() -> None:
    """A target without devices that have a node is left out."""
    answer: NumaAnswer = {
        "nodes": [{"node": 0, "cores": [0, 1]}],
        "devices": {"GPU": [{"device": 3, "node": 0}], "Ascend": []},
    }
    assert read_numa(answer) == NumaFacts({0: (0, 1)}, {"GPU": {3: 0}})


SHOW = "import os\nprint(sorted(os.sched_getaffinity(0)))\nprint(open('/proc/self/numa_maps').read().split()[1])\n"


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support")
def test_the_kernel_binds_cores_and_memory(bench: Bench) -> None:
    """The rank has its cores, and its memory policy prefers a node, without numactl."""
    bench.write("train.py", SHOW)
    done = bench.mslaunch("train", "-n", "2", "--numa")
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        env = bench.environment(rank)
        cores, policy = bench.log(rank).splitlines()[-2:]
        assert json.loads(cores) == probe.parse_list(env["MSLAUNCH_CORES"])
        allowed = policy == f"prefer:{env['MSLAUNCH_NUMA_NODE']}" or "cannot bind this rank's memory" in bench.log(rank)
        assert allowed, bench.log(rank)
    assert "MSLAUNCH_NUMA_NODE=" in bench.mslaunch("train", "-n", "2", "--numa", "--dry-run").stdout


def test_msruns_dictionary_binds(bench: Bench) -> None:
    """A pasted --bind_core does what it says."""
    bench.write("train.py", "import os\nprint(sorted(os.sched_getaffinity(0)))\n")
    core = max(os.sched_getaffinity(0))
    done = bench.mslaunch("msrun", "--worker_num=1", f'--bind_core={{"device0": ["{core}"]}}', "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.log(0) == f"[{core}]\n"


BIND_FILE = {
    "bind_config": {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"},
    "bind_cpu": {"device0": {"main": "0-3", "runtime": "1"}, "device1": {"main": "4, 5"}, "scheduler": {"main": "0"}},
    "bind_memory": {"device0": 0, "device1": "0-1", "device2": None},
}


def memory_of(plan: Plan) -> list[tuple[str | None, str | None]]:
    return [(one.env.get("MSLAUNCH_CORES"), one.env.get("MSLAUNCH_MEMORY_NODES")) for one in plan.workers]


def flags_of(value: str) -> dict[str, Any]:
    """The settings that msrun's --bind_numa becomes."""
    words = [word.partition("=") for word in bind_numa(value)]
    return {name.strip("-").replace("-", "_"): text for name, _, text in words if name != "--env"}


def test_msruns_bind_numa_binds_cores_and_memory(tmp_path: Path) -> None:
    """A dictionary gives each device the cores and the memory of nodes; a file gives each what it says, as in 2.10."""
    file = tmp_path / "bind.json"
    file.write_text(json.dumps(BIND_FILE))
    by_node = {**BIND_FILE, "bind_config": {"bind_cpu_mode": "numa"}, "bind_cpu": {"device0": 1, "device1": "0,1"}}
    memory_only = {"bind_config": {"bind_memory_mode": "numa"}, "bind_memory": {"device1": 1}}
    forms: dict[str, list[tuple[str | None, str | None]]] = {
        '{"device0": ["0"], "device1": ["1"]}': [("0-3", "0"), ("4-7", "1")],
        '{"device1": ["0-1"], "scheduler": ["0"]}': [(None, None), ("0-7", "0-1")],
        str(file): [("0-3", "0"), ("4-5", "0-1")],
        json.dumps(by_node): [("4-7", None), ("0-7", None)],
        json.dumps(memory_only): [(None, None), (None, "1")],
    }
    bindings = {}
    for value in forms:
        plan = plan_for((0, 1), tuple(range(8)), TWO_NODES, "GPU", **flags_of(value))
        bindings[value] = memory_of(plan)
    assert bindings == forms
    words = bind_numa(str(file))
    assert f"--env=MSRUN_BIND_FILE={file}" in words
    assert f"--env=MSRUN_BIND_FILE_HASH={hashlib.sha256(file.read_bytes()).hexdigest()}" in words


def test_a_bind_numa_that_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    """With what is wrong: the value, the file, the mode, or a node that a host does not have."""
    wrong = {
        "maybe": "--bind_numa: cannot read 'maybe'; write True, False",
        '{"device0": "0"}': "write True, False, which NUMA nodes each device gets",
        str(tmp_path / "none.json"): "cannot read the file: No such file",
        '{"bind_config": {"bind_cpu_mode": "core"}}': "bind_cpu_mode is 'core'. Write cpu, numa or none.",
        '{"bind_config": {"bind_cpu_mode": "numa"}, "bind_cpu": {"device0": [0]}}': "device0: expected numbers such as",
        '{"device0": ["7"]}': "localhost has no NUMA node 7; there are 0-1.",
    }
    messages = {}
    for value, words in wrong.items():
        with pytest.raises(RequestError) as refused:
            plan_for((0, 1), tuple(range(8)), TWO_NODES, "GPU", **flags_of(value))
        messages[value] = words if words in str(refused.value) else str(refused.value)
    assert messages == wrong


def test_a_map_of_devices_is_never_one_of_ranks() -> None:
    """device0 is not rank 0 where the ranks use other devices; ranks of one node share its cores with --bind-cores."""
    flags = {"node_map": '{"device0": ["0"], "device4": ["1"], "device5": ["1"]}', "bind_cores": True}
    assert bound(plan_for((4, 5), tuple(range(8)), TWO_NODES, "GPU", **flags)) == [("4-5", None), ("6-7", None)]


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support")
def test_the_kernel_binds_memory_to_the_nodes_of_a_file(bench: Bench) -> None:
    """A pasted --bind_numa with a file does what the file says."""
    bench.write("train.py", SHOW)
    core = max(os.sched_getaffinity(0))
    form = {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"}
    one = {"bind_config": form, "bind_cpu": {"device0": {"main": str(core)}}, "bind_memory": {"device0": 0}}
    bench.write("bind.json", json.dumps(one))
    done = bench.mslaunch("msrun", "--worker_num=1", "--bind_numa=bind.json", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    cores, policy = bench.log(0).splitlines()[-2:]
    assert json.loads(cores) == [core]
    assert policy == "bind:0" or "cannot bind this rank's memory" in bench.log(0)


def test_other_hosts_are_asked_for_their_nodes(far: Bench) -> None:
    """The agent's probe tells them, and only where they are wanted."""
    assert far.mslaunch("train", "--hosts", "n1:1,n2:1", "--numa").returncode == 0
    assert {far.environment(rank)["MSLAUNCH_NUMA_NODE"] for rank in (0, 1)} <= set(map(str, range(64)))
    assert far.mslaunch("train", "--hosts", "n1:1").returncode == 0
    assert "MSLAUNCH_NUMA_NODE" not in far.environment(0)
