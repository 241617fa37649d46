"""CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES: which devices ranks see, how they are counted, what is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from mslaunch.agent.metrics.resources import DeviceMetrics
from mslaunch.errors import HostsNotReady
from mslaunch.hosts import Host
from mslaunch.launcher.check import Checked, Report, check_devices
from mslaunch.plan.variables import NOT_CARRIED, carried
from mslaunch.shared import device_locks, messages, probe, visible_devices
from mslaunch.shared.visible_devices import VARIABLES, environment_of_ranks, limit
from mslaunch.transports.slurm import allotment
from tests.agent.test_resources import tool
from tests.beds.device_bed import on_devices
from tests.conftest import Bench, wait_for
from tests.plan.test_numa import machine, tools

EIGHT = tuple(range(8))
UUIDS = "0, GPU-0a11-aa\n1, GPU-0a22-bb\n2, GPU-9c33-cc\n"


def cuda(value: str, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": value, **more}


def ascend(value: str) -> dict[str, str]:
    return {"ASCEND_RT_VISIBLE_DEVICES": value}


@pytest.mark.parametrize(
    ("stem", "there", "environment", "files"),
    [
        ("nvidia", EIGHT, {}, list(EIGHT)),
        ("nvidia", EIGHT, cuda("4,5"), [4, 5]),
        ("nvidia", EIGHT, cuda("5,4"), [5, 4]),
        ("nvidia", EIGHT, cuda("4, 5"), [4, 5]),
        ("nvidia", EIGHT, cuda(""), []),
        ("nvidia", EIGHT, cuda("-1"), []),
        ("nvidia", EIGHT, cuda("NoDevFiles"), []),
        ("nvidia", EIGHT, cuda("0,2,-1,1"), [0, 2]),
        ("nvidia", EIGHT, cuda("4,8,5"), [4]),
        ("nvidia", EIGHT, cuda("4,4"), []),
        ("nvidia", EIGHT, cuda("4,5,"), [4, 5]),
        ("nvidia", EIGHT, ascend("4,5"), list(EIGHT)),
        ("nvidia", (), cuda("0,1"), []),
        ("nvidia", (0, 1, 2), cuda("GPU-9c33-cc,GPU-0a11"), [2, 0]),
        ("nvidia", (0, 1, 2), cuda("GPU-0a"), [None]),
        ("nvidia", (0, 1, 2), cuda("GPU-9c33,GPU-9c33"), []),
        ("nvidia", (0, 1, 2), cuda("GPU-9c33,x,GPU-0a11"), [2]),
        ("nvidia", (0, 1, 2), cuda("MIG-1f,MIG-GPU-0a11-aa/1/0"), [None, None]),
        ("nvidia", EIGHT, cuda("0,1", SLURM_JOB_GPUS="2,3"), [2, 3]),
        ("nvidia", EIGHT, cuda("2,3", SLURM_JOB_GPUS="2,3"), [2, 3]),
        ("nvidia", EIGHT, cuda("1", SLURM_JOB_GPUS="6,7"), [7]),
        ("nvidia", EIGHT, cuda("0", SLURM_STEP_GPUS="5", SLURM_JOB_GPUS="4,5"), [5]),
        ("nvidia", (4, 5), cuda("0,1"), [4, 5]),
        ("davinci", EIGHT, {}, list(EIGHT)),
        ("davinci", (0, 1, 2, 3, 5), {}, [0, 1, 2, 3, 5]),
        ("davinci", EIGHT, ascend("4,5"), [4, 5]),
        ("davinci", EIGHT, ascend("1, 2,3"), [1]),
        ("davinci", EIGHT, ascend("1,3,8"), [1, 3]),
        ("davinci", EIGHT, ascend(""), []),
        ("davinci", EIGHT, ascend("1,1"), []),
        ("davinci", (4,), ascend("4"), [4]),
        ("davinci", (0, 1, 2, 3, 5), ascend("5"), [5]),
        ("davinci", EIGHT, ascend("9" * 5000), []),
    ],
)
def test_a_variable_says_which_devices_are_seen(
    stem: str, there: tuple[int, ...], environment: dict[str, str], files: list[int | None]
) -> None:
    """Counted from 0, as CUDA and CANN read their variables; without one, devices have the numbers of their files."""
    seen = visible_devices.visible_devices(stem, there, environment, tools({"nvidia-smi": UUIDS}))
    assert list(seen.values()) == files
    assert list(seen) == (list(range(len(files))) if VARIABLES[stem] in environment else files)


def test_uuids_are_counted_where_nvidia_smi_is_not_there() -> None:
    """Which device each of them is stays unknown."""
    seen = visible_devices.visible_devices("nvidia", EIGHT, cuda("GPU-1,GPU-2"), tools({}))
    assert seen == {0: None, 1: None}


@pytest.mark.parametrize(
    ("value", "shown"), [("4,5", "4,5"), ("", ""), ("4\x1b[2J", r"'4\x1b[2J'"), ("1," * 100, "1," * 30 + "...")]
)
def test_a_limit_is_shown_as_it_would_be_typed(value: str, shown: str) -> None:
    """In one line, whatever somebody has exported."""
    assert limit("nvidia", cuda(value)) == f"CUDA_VISIBLE_DEVICES={shown}"


def test_ranks_see_what_the_job_and_the_host_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """--env and a host's own variables count more than the agent's environment."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0")
    order = {"env": cuda("1"), "secrets": {}, "processes": [{"rank": None, "env": {}}, {"rank": 0, "env": ascend("3")}]}
    found = environment_of_ranks(cast(messages.RunOrder, order))
    assert {name: found[name] for name in VARIABLES.values()} == {**cuda("1"), **ascend("3")}


GPU_ROWS = "\n".join(f"{number}, 1, 2, 3, 4, {number}00" for number in range(8))
NPU_ROWS = "\n".join(
    f"| {number}  910B | OK | {number}00.0 40 0 / 0 |\n| 0 | 0000:C1:00.0 | 1 0 / 0 2 / 3 |" for number in range(8)
)


@pytest.mark.parametrize(
    ("target", "name", "rows", "environment"),
    [("GPU", "nvidia-smi", GPU_ROWS, cuda("4,5")), ("Ascend", "npu-smi", NPU_ROWS, ascend("4,5"))],
)
def test_metrics_are_those_of_the_devices_that_ranks_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str, rows: str, environment: dict[str, str]
) -> None:
    """The tool counts all devices of the host, whatever the variable says; here it prints a sample."""
    (tmp_path / "rows").write_text(rows)
    tool(tmp_path, name, f'[ -z "$CUDA_VISIBLE_DEVICES$ASCEND_RT_VISIBLE_DEVICES" ] && cat {tmp_path}/rows')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    metrics = DeviceMetrics(target, {0, 1}, environment)
    metrics.look(100.0)
    found = wait_for(lambda: metrics.look(101.0), "the tool's answer")
    assert {device: values["power"] for device, values in found.items()} == {0: 400.0, 1: 500.0}


def test_numa_nodes_are_those_of_the_devices_that_ranks_see(tmp_path: Path) -> None:
    """nvidia-smi and npu-smi count all devices of the host."""
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"0000:3b:00.0": 0, "0000:d8:00.0": 1})
    said = {"nvidia-smi --query-gpu=index,pci": "0, 00000000:3B:00.0\n1, 00000000:D8:00.0\n"}
    found = probe.numa_facts(cuda("1"), root, tools(said))
    assert found["devices"]["GPU"] == [{"device": 0, "node": 1}]


def test_locks_are_of_the_devices_that_ranks_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUID is the same device as its number; a device that the variable hides is not locked."""
    place = tmp_path / "dev"
    place.mkdir()
    for number in range(3):
        (place / f"nvidia{number}").touch()
    tool(tmp_path, "nvidia-smi", f"printf '{UUIDS.encode('unicode_escape').decode()}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(device_locks, "FOLDER", str(tmp_path / "locks"))
    monkeypatch.setattr(device_locks, "DEVICES", str(place))
    monkeypatch.setattr(device_locks, "PAUSE", 0.001)
    first = device_locks.DeviceLocks()
    assert first.take("nvidia", [0, 1], cuda("GPU-9c33"), "first") == {}
    assert list(device_locks.holders("nvidia", [0, 1, 2], {})) == [2]


def test_the_variables_of_this_machine_do_not_travel() -> None:
    """They name its own devices; each host has its own."""
    assert set(NOT_CARRIED) == set(VARIABLES.values())
    assert carried({**cuda("4"), **ascend("4"), "CUDA_HOME": "/c"}, ()) == ("CUDA_HOME",)


def host_facts(seen: list[int], limits: dict[str, object]) -> dict[str, object]:
    return {"devices": {"GPU": seen, "Ascend": []}, "limits": limits, "held": {}, "busy": {}, "gpus": [2, 3, 4]}


def test_another_host_tells_what_hides_its_devices() -> None:
    """More devices than it shows are refused with the variable's name."""
    host = Host("n1", "10.0.0.1", (0, 1, 2))
    facts = host_facts([0, 1], {"GPU": {"by": "CUDA_VISIBLE_DEVICES=4,5", "of": 8, "files": [4, 5]}})
    with pytest.raises(HostsNotReady) as refused:
        check_devices((host,), Checked({"n1": Report(host, facts, 0.0)}, 1), "GPU")
    assert "n1: device 2 is not visible: CUDA_VISIBLE_DEVICES=4,5 shows 2 of 8 GPU devices (4,5)." in str(refused.value)
    assert "Name device 0-1 in --hosts, or change it." in str(refused.value)


@pytest.mark.parametrize(
    ("files", "devices"), [(None, (2, 3, 4)), ([2, 3, 4], (0, 1, 2)), ([3], (0,)), ([7, 4], (1,)), ([None], (0,))]
)
def test_devices_that_slurm_gives_have_the_numbers_that_ranks_see(
    files: list[int | None] | None, devices: tuple[int, ...]
) -> None:
    """Of those that the variable shows, the ones that Slurm has granted."""
    limits: dict[str, object] = {} if files is None else {"GPU": {"by": "x", "of": 8, "files": files}}
    assert allotment({}, {"n1": host_facts([], limits)}, "GPU").devices == {"n1": devices}


TREES = [
    ("GPU", [f"nvidia{number}" for number in EIGHT], "CUDA_VISIBLE_DEVICES"),
    ("Ascend", [f"davinci{number}" for number in EIGHT], "ASCEND_RT_VISIBLE_DEVICES"),
]


@pytest.mark.parametrize(("target", "files", "name"), TREES)
def test_a_job_has_a_rank_for_each_device_that_it_sees(
    bench: Bench, tmp_path: Path, target: str, files: list[str], name: str
) -> None:
    """Two of eight, counted from 0, whether the shell or the job sets the variable."""
    bench.write("train.py", "")
    for given in ((), ("--env", f"{name}=4,5")):
        env = {} if given else {name: "4,5"}
        done = on_devices(bench, tmp_path / "dev", files, "train", *given, "--dry-run", "--json", "train.py", **env)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        assert (plan["device_target"], plan["hosts"][0]["devices"]) == (target, [0, 1])
        assert f"{name}=4,5 shows 2 of 8 {target} devices (4,5)" in plan["notes"]


@pytest.mark.parametrize(("target", "files", "name"), TREES)
def test_more_devices_than_are_visible_are_refused(
    bench: Bench, tmp_path: Path, target: str, files: list[str], name: str
) -> None:
    """One sentence says which, why, and what to do."""
    bench.write("train.py", "")
    args = ("train", "-n", "3", "--dry-run", "train.py")
    done = on_devices(bench, tmp_path / "dev", files, *args, **{name: "4,5"})
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr == (
        f"mslaunch: device 2 is not visible: 3 ranks are asked for, and {name}=4,5 shows 2 of 8 {target} devices "
        f"(4,5), which ranks number 0-1. Ask for fewer --workers, name visible ones with --devices, or change {name}.\n"
    )


def test_a_variable_that_shows_nothing_means_the_cpu(bench: Bench, tmp_path: Path) -> None:
    """As with every program that uses CUDA."""
    bench.write("train.py", "")
    files = [f"nvidia{number}" for number in EIGHT]
    args = ("train", "--dry-run", "--json", "train.py")
    done = on_devices(bench, tmp_path / "dev", files, *args, **cuda(""))
    assert json.loads(done.stdout)["device_target"] == "CPU", done.stderr
    assert "CUDA_VISIBLE_DEVICES= shows 0 of 8 GPU devices" in json.loads(done.stdout)["notes"]


def test_a_gpu_that_is_configured_and_hidden_is_refused(bench: Bench, tmp_path: Path) -> None:
    """It is there, so the variable is what to change."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", "device_target: GPU\n")
    args = ("train", "-c", "cfg.yaml", "--dry-run", "train.py")
    done = on_devices(bench, tmp_path / "dev", ["nvidia0", "nvidia1"], *args, **cuda("-1"))
    assert done.returncode == 3
    assert done.stderr == (
        "mslaunch: device 0 is not visible: 1 rank is asked for, and CUDA_VISIBLE_DEVICES=-1 shows 0 of 2 GPU devices. "
        "Change CUDA_VISIBLE_DEVICES, or write device_target: CPU.\n"
    )


@pytest.mark.parametrize(("target", "files", "name"), TREES)
def test_check_tells_which_devices_are_visible(
    bench: Bench, tmp_path: Path, target: str, files: list[str], name: str
) -> None:
    """Of how many, and why."""
    done = on_devices(bench, tmp_path / "dev", files, "check", **{name: "4,9,5"})
    assert f"{name}=4,9,5 shows 1 of 8 {target} devices (4)" in done.stdout, done.stderr
    everything = on_devices(bench, tmp_path / "dev", files, "check")
    assert f"8 {target}" in everything.stdout
    assert "shows" not in everything.stdout


def test_two_runs_on_other_devices_do_not_meet(bench: Bench, tmp_path: Path) -> None:
    """A run that holds GPUs 4 and 5 refuses one that sees 5 and 6, and not one that sees 6 and 7."""
    bench.write("train.py", "import subprocess, sys\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n")
    bench.write("go.py", "")
    bench.write("inner.sh", 'CUDA_VISIBLE_DEVICES=$1 mslaunch train --run-id "r$2" go.py >out$2 2>&1; echo $?\n')
    files = [f"nvidia{number}" for number in EIGHT]
    path = f"{Path(bench.program).parent}:{bench.env['PATH']}"
    script = "cd $MSLAUNCH_SUBMIT_DIR; sh inner.sh 5,6 1; sh inner.sh 6,7 2"
    args = ("train", "--run-id", "outer", "-n", "1", "train.py", "--", "sh", "-c", script)
    done = on_devices(bench, tmp_path / "dev", files, *args, PATH=path, **cuda("5,4"))
    assert done.returncode == 0, done.stdout
    told = (bench.runs / "outer" / "rank_0" / "log.txt").read_text().split()
    assert told == ["3", "0"], [one.read_text() for one in bench.folder.glob("out*")]
    assert "device 0 is used by run outer" in (bench.folder / "out1").read_text()
