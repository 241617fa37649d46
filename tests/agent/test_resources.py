"""Resources of real ranks, of this host, and of devices whose tools are samples."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent.metrics import resources as rank_resources
from mslaunch.agent.metrics.resources import Resources, read_npu_smi, read_nvidia_smi
from tests.agent.test_log_metrics import order
from tests.beds.driven_agent import DrivenAgent, driven_agent
from tests.conftest import wait_for

MB = 1 << 20
NVIDIA_SMI = """0, 97, 70123, 81559, 61, 412.53
1, 0, 4, 81559, 33, [N/A]
"""
"""A sample: what `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` prints for two GPUs."""
NPU_SMI = """+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.1                   Version: 24.1.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 91          0    / 0          26838/ 32768         |
+===========================+===============+====================================================+
| 1     910B4               | OK            | 87.0        31                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          2935 / 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 123456        | python                   | 24000                   |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
"""A sample: what `npu-smi info` prints for two NPUs of one chip each."""
NPU_SMI_TWO_CHIPS = """| npu-smi 25.3.rc1                 Version: 25.3.rc1 |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 163.6       30                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 12          0    / 0          3180 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           29                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2896 / 65536         |
+===========================+===============+====================================================+
"""
"""A sample: what `npu-smi info` prints for one NPU of two chips, of which the second tells no power."""
NPU_SMI_310P = """| NPU     Name              | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device            | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===========================+=================+======================================================+
| 4       310P3             | OK              | NA           45                0     / 0             |
| 0       0                 | 0000:84:00.0    | 7            1692 / 21527                            |
"""
"""A sample: what `npu-smi info` prints for a chip without on-chip memory."""


def test_the_output_of_nvidia_smi_is_read() -> None:
    """What a GPU does not tell is left out."""
    assert read_nvidia_smi(NVIDIA_SMI) == {
        0: {
            "utilisation": 97,
            "memory_used": 70123 * MB,
            "memory_total": 81559 * MB,
            "temperature": 61,
            "power": 412.53,
        },
        1: {"utilisation": 0, "memory_used": 4 * MB, "memory_total": 81559 * MB, "temperature": 33},
    }


def test_the_output_of_npu_smi_is_read() -> None:
    """Two lines a chip; the table of processes below is none of it."""
    assert read_npu_smi(NPU_SMI) == {
        0: {"power": 88.2, "temperature": 30, "utilisation": 91, "memory_used": 26838 * MB, "memory_total": 32768 * MB},
        1: {"power": 87.0, "temperature": 31, "utilisation": 0, "memory_used": 2935 * MB, "memory_total": 32768 * MB},
    }


def test_chips_of_one_npu_are_known_by_their_own_number() -> None:
    """Which is the one that a rank has in its DEVICE_ID."""
    found = read_npu_smi(NPU_SMI_TWO_CHIPS)
    assert {device: values["memory_used"] // MB for device, values in found.items()} == {0: 3180, 1: 2896}
    assert "power" not in found[1]


def test_a_chip_without_on_chip_memory_is_read() -> None:
    """Its memory is the other one."""
    assert read_npu_smi(NPU_SMI_310P) == {
        0: {"temperature": 45, "utilisation": 7, "memory_used": 1692 * MB, "memory_total": 21527 * MB}
    }


@pytest.mark.parametrize(
    "text", ["", "\0", "|||\n|0|\n", "| 0 | 1 | 2 |\n" * 3, "0\n0,\n0, a, b, c, d, e\n", "9" * 5000]
)
@pytest.mark.parametrize("read", [read_npu_smi, read_nvidia_smi])
def test_other_output_of_a_tool_does_no_harm(read: Callable[[str], Any], text: str) -> None:
    """A tool may print anything, an error message for example."""
    assert all(isinstance(values, dict) for values in read(text).values())


def rows_of(agent: DrivenAgent, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a row of metrics."""
    while True:
        event = agent.until("metrics")[-1]
        for row in event["rows"]:
            if wanted(row):
                found: dict[str, Any] = row
                return found


def test_resources_of_ranks_and_host_are_sent(tmp_path: Path) -> None:
    """Those of a rank with all that descends from it."""
    with driven_agent(tmp_path) as agent:
        agent.run("(while :; do :; done) & wait", metrics=order(resources=0.2))
        rank = rows_of(agent, lambda row: row["rank"] == 0 and row["values"].get("cpu", 0) > 0.05)["values"]
        host = rows_of(agent, lambda row: row["rank"] is None and "net_sent" in row["values"])["values"]
        agent.send({"do": "stop", "grace": 0.0})
        agent.until("idle")
    assert rank["threads"] == 2
    assert rank["memory"] > 1 << 18
    assert {"cpu", "cpu_wait", "memory", "threads", "read_rate", "write_rate"} == set(rank)
    assert 0 <= rank["cpu_wait"] <= 1
    names = {"load", "memory_used", "memory_total", "swap_rate", "disk_free", "disk_total", "net_received", "net_sent"}
    assert set(host) == names
    assert 0 < host["memory_used"] < host["memory_total"]
    assert 0 < host["disk_free"] <= host["disk_total"]


def test_a_rank_that_is_stopped_is_told_and_that_it_goes_on_again(tmp_path: Path) -> None:
    """SIGSTOP, to a child of the rank's own."""
    with driven_agent(tmp_path) as agent:
        agent.run("sleep 1000 & echo $! > pid; wait", metrics=order(resources=0.1))
        child = int(
            wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the rank's child")
        )
        os.kill(child, signal.SIGSTOP)
        rows_of(agent, lambda row: row["rank"] == 0 and row["values"].get("stopped") == 1)
        os.kill(child, signal.SIGCONT)
        rows_of(agent, lambda row: row["rank"] == 0 and row["values"].get("stopped") == 0)
        agent.send({"do": "stop", "grace": 0.0})
        agent.until("idle")


@contextmanager
def busy(*commands: str) -> Iterator[int]:
    """A shell that runs a command, as a child of ours."""
    pid = os.posix_spawn("/bin/sh", ["/bin/sh", "-c", *commands], os.environ, setpgroup=0)
    try:
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def values_of(resources: Resources, pid: int) -> dict[str, float]:
    return next((values for rank, values in resources.look({0: pid}) if rank == 0), {})


def test_bytes_that_a_child_reads_and_writes_count(tmp_path: Path) -> None:
    """Also after it has ended: they are its parent's then."""
    with busy(f"sleep 0.3; head -c 5000000 /dev/zero > {tmp_path}/x; touch {tmp_path}/done; sleep 1000") as pid:
        resources = Resources(str(tmp_path))
        values_of(resources, pid)
        wait_for((tmp_path / "done").exists, "the child's end")
        assert values_of(resources, pid)["write_rate"] > 0


def test_what_a_child_has_used_that_has_ended_counts(tmp_path: Path) -> None:
    """Also where it was never seen."""
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    os.mkfifo(tmp_path / "go")
    with busy(f"cd {tmp_path}; read x < go; sh -c '{loop}; exit'; touch ended; sleep 1000") as pid:
        resources = Resources(str(tmp_path))
        values_of(resources, pid)
        (tmp_path / "go").write_text("\n")
        wait_for((tmp_path / "ended").exists, "the child's end")
        assert values_of(resources, pid)["cpu"] > 0


def test_a_rank_that_has_ended_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last number stays that of its life, also where somebody else has still to wait for it, as under mpirun."""
    monkeypatch.setattr(rank_resources, "SEARCH_SHARE", 1e9)  # a machine with very many processes
    child = subprocess.Popen(["sleep", "600"])
    resources = Resources(str(tmp_path))
    assert [rank for rank, _ in resources.look({0: child.pid})] == [0, None]
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [rank for rank, _ in resources.look({0: child.pid})] == [None]
    child.wait()


def test_a_process_that_ends_makes_no_peak(tmp_path: Path) -> None:
    """What it has used over its life is not used once more when it ends."""
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    os.mkfifo(tmp_path / "go")
    with busy(f"cd {tmp_path}; sh -c '{loop}; touch used; read x < go'; touch ended; sleep 1000") as pid:
        resources = Resources(str(tmp_path))
        wait_for((tmp_path / "used").exists, "the child's work")
        values_of(resources, pid)
        (tmp_path / "go").write_text("\n")
        wait_for((tmp_path / "ended").exists, "the child's end")
        assert values_of(resources, pid)["cpu"] < 0.5


def tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("target", "name", "sample", "power"),
    [("GPU", "nvidia-smi", NVIDIA_SMI, 412.53), ("Ascend", "npu-smi", NPU_SMI, 88.2)],
)
def test_devices_of_the_ranks_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str, sample: str, power: float
) -> None:
    """Those of the host's ranks only; the tool here prints a sample."""
    (tmp_path / "sample").write_text(sample)
    tool(tmp_path, name, f"cat {tmp_path}/sample")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with driven_agent(tmp_path) as agent:
        agent.run("sleep 1000", metrics=order(devices=target))
        row = rows_of(agent, lambda row: row["device"] is not None)
        agent.send({"do": "stop", "grace": 0.0})
        agent.until("idle")
    assert (row["device"], row["values"]["power"]) == (0, power)


def test_a_tool_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the agent's answers nor the end of the job."""
    tool(tmp_path, "npu-smi", f"echo $$ > {tmp_path}/asked; trap '' TERM; while :; do sleep 1000; done")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with driven_agent(tmp_path) as agent:
        agent.run("sleep 1000", metrics=order(devices="Ascend"))
        wait_for(lambda: (tmp_path / "asked").exists() and (tmp_path / "asked").read_text(), "the tool")
        agent.send({"do": "ping"})
        agent.until("pulse")
        agent.send({"do": "stop", "grace": 600.0})
        agent.until("idle")
    assert not Path(f"/proc/{(tmp_path / 'asked').read_text().strip()}").exists()
