"""A transport from another package: real jobs in two network namespaces, by the plug-in of docs/transports.md."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.beds import netns_bed
from tests.beds.ssh_bed import HELLO, SLEEP
from tests.conftest import ROOT, Bench, wait_for
from tests.jobs.test_mindspore import ALL_REDUCE

WHERE = HELLO + "print('namespace', os.stat('/proc/self/ns/net').st_ino, flush=True)\n"
FAILS = HELLO + "import time\nif os.environ['RANK_ID'] == '1': 1 / 0\ntime.sleep(100)\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return netns_bed.install(tmp_path_factory.mktemp("netns"), ROOT / "tests" / "netns_plugin")


@pytest.fixture(scope="module")
def spaces() -> Iterator[tuple[str, str]]:
    with netns_bed.namespaces() as names:
        yield names


@pytest.fixture
def apart(bench: Bench, spaces: tuple[str, str], program: Path) -> Iterator[Bench]:
    """A folder to launch from, with the plug-in and two namespaces; in the end nothing may run in them."""
    bench.program = str(program)
    bench.env["MSLAUNCH_TRANSPORT"] = "netns"
    bench.env["MSLAUNCH_HOSTS"] = ",".join(f"{name}:1" for name in spaces)
    bench.write("train.py", WHERE)
    yield bench
    wait_for(lambda: not netns_bed.processes_in(*spaces), "empty namespaces", 15)


def test_a_job_runs_in_two_namespaces(bench: Bench, spaces: tuple[str, str], program: Path) -> None:
    """Each rank is in the namespace of its host, and its output is shown and kept as on any host."""
    bench.program = str(program)
    bench.write("train.py", WHERE)
    hosts = ",".join(f"{name}:1" for name in spaces)
    done = bench.mslaunch("train", "--transport", "netns", "--hosts", hosts, "--tail", "all")
    assert done.returncode == 0, done.stderr
    for rank, name in enumerate(spaces):
        inode = Path("/run/netns", name).stat().st_ino
        assert bench.log(rank).splitlines() == [f"rank {rank} on {name} device 0", f"namespace {inode}"]
        assert f"[{name} rank {rank}] namespace {inode}" in done.stdout
    assert (bench.record()["transport"], bench.record()["state"]) == ("netns", "succeeded")
    assert bench.plan()["master"].startswith(f"{netns_bed.ADDRESSES[0]}:")


def test_logs_and_ps_show_a_run_of_a_plug_in(apart: Bench, spaces: tuple[str, str]) -> None:
    """What reads a run's folder needs nothing of the transport."""
    assert apart.mslaunch("train").returncode == 0
    assert f"rank 1 on {spaces[1]} device 0" in apart.mslaunch("logs", "--rank", "1").stdout
    assert "succeeded" in apart.mslaunch("ps").stdout
    assert spaces[1] in apart.mslaunch("status").stdout


def test_check_asks_the_hosts_of_a_plug_in(bench: Bench, spaces: tuple[str, str], program: Path) -> None:
    """--transport names it; a namespace that is not there is named with the fix, exit code 3."""
    bench.program = str(program)
    asked = ("check", "--transport", "netns", "--hosts")
    ready = bench.mslaunch(*asked, ",".join(spaces))
    assert ready.returncode == 0, ready.stderr
    assert [line.split()[:2] for line in ready.stdout.splitlines()[1:]] == [[name, "yes"] for name in spaces]
    missing = bench.mslaunch(*asked, f"{spaces[0]},nowhere")
    assert missing.returncode == 3
    assert missing.stderr.startswith("mslaunch: nowhere: ")
    assert missing.stderr.endswith("`ip netns list` shows which namespaces there are.\n")


def test_namespaces_that_do_not_reach_each_other_are_found_before_the_start(
    apart: Bench, spaces: tuple[str, str]
) -> None:
    """The scheduler's port is tried from every host, at the address that the plug-in has found."""
    with netns_bed.unplugged(spaces[1]):
        done = apart.mslaunch("train")
    assert done.returncode == 3
    assert f"{spaces[1]}: cannot connect to {netns_bed.ADDRESSES[0]} port" in done.stderr
    assert not any(path.is_dir() for path in apart.runs.glob("*"))


def test_a_failing_rank_is_named_with_its_host(apart: Bench, spaces: tuple[str, str]) -> None:
    """The verdict has the namespace's name, and the rank in the other one is stopped."""
    apart.write("train.py", FAILS)
    done = apart.mslaunch("train")
    assert done.returncode == 1
    verdict = apart.record()["verdict"]
    assert (verdict["rank"], verdict["host"], verdict["victims"]) == (1, spaces[1], [0])
    assert f"First to fail: rank 1, host {spaces[1]}" in done.stdout


def test_stop_leaves_nothing_in_either_namespace(apart: Bench, spaces: tuple[str, str]) -> None:
    """When `mslaunch stop` returns, both are empty."""
    apart.write("train.py", SLEEP)
    launcher = apart.start("train")
    wait_for(lambda: apart.runs.exists() and apart.log(0) and apart.log(1), "both ranks")
    assert all(netns_bed.processes_in(name) for name in spaces)
    assert apart.mslaunch("stop").returncode == 0
    assert apart.leftovers() == []
    launcher.communicate(timeout=30)
    assert launcher.returncode == 143
    assert netns_bed.processes_in(*spaces) == []


def test_killing_the_launcher_leaves_nothing_in_either_namespace(apart: Bench, spaces: tuple[str, str]) -> None:
    """kill -9: the agents' input closes, and they end their ranks."""
    apart.write("train.py", SLEEP)
    launcher = apart.start("train")
    wait_for(lambda: apart.runs.exists() and apart.log(0) and apart.log(1), "both ranks")
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate(timeout=30)
    wait_for(lambda: not netns_bed.processes_in(*spaces), "empty namespaces", 15)
    assert "lost" in apart.mslaunch("ps").stdout


@pytest.mark.mindspore
@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed (pip install '.[mindspore]')")
def test_mindspore_ranks_in_two_namespaces_reduce(apart: Bench) -> None:
    """A real collective over the cable: the scheduler is in the first namespace, a rank in each."""
    apart.write("train.py", ALL_REDUCE)
    done = apart.mslaunch("train")
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"rank {rank} of 2 sum 3.0 device 0\n" in apart.log(rank)
