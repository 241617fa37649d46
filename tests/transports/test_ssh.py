"""Jobs over real SSH: many hosts on this machine, one command, one verdict, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mslaunch import find_run
from mslaunch.shared.guard import processes_with
from tests.beds import ssh_bed
from tests.beds.ssh_bed import HELLO, SLEEP
from tests.conftest import Bench, wait_for


def test_ranks_are_contiguous_per_host_in_the_order_given(far: Bench) -> None:
    """Unequal hosts work; output is shown with host and rank, and one folder holds all of it."""
    done = far.mslaunch("train", "--hosts", "n2:[3,5],n1:1", "--tail", "all")
    assert done.returncode == 0, done.stderr
    assert "[n2 rank 1] rank 1 on n2 device 5" in done.stdout
    assert "[n1 rank 2] rank 2 on n1 device 0" in done.stdout
    assert [(rank["host"], rank["device_id"]) for rank in far.record()["ranks"]] == [("n2", 3), ("n2", 5), ("n1", 0)]
    assert far.record()["transport"] == "ssh"
    assert "rank 0 on n2" in far.log(0)


def test_hosts_come_from_a_file_or_the_yaml_too(far: Bench) -> None:
    """Open MPI's spelling; in the YAML with user, Python and variables of a host."""
    far.write("hosts.txt", "# the cluster\nn1 slots=2\nn2 slots=1\n")
    assert far.mslaunch("train", "--hostfile", "hosts.txt", "--workers", "3").returncode == 0
    entry = f"- {{address: n3, devices: 0-1, user: root, python: {sys.executable}, env: {{COLOUR: blue}}}}"
    far.write("cfg.yaml", f"launch:\n  hosts:\n  {entry}\n  - {{address: n4}}\n")
    assert far.mslaunch("train", "--config", "cfg.yaml").returncode == 0
    assert far.environment(1)["COLOUR"] == "blue"
    assert "COLOUR" not in far.environment(2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--hostfile", "none.txt"), "none.txt: cannot read the hostfile"),
        (("--hostfile", "empty.txt"), "empty.txt: names no host"),
        (("--hosts", "n1:2,n2:2", "--workers", "3"), "number of ranks: --workers says 3"),
        (("--hosts", "n1:2", "--devices", "0-1"), "devices stand with each"),
        (("--hosts", "n1", "--hostfile", "empty.txt"), "both name hosts"),
    ],
)
def test_wrong_requests_start_nothing(far: Bench, args: tuple[str, ...], words: str) -> None:
    """A hostfile that is missing or empty is an error, never a local run."""
    far.write("empty.txt", "# nobody\n")
    done = far.mslaunch("train", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert not far.runs.exists()


def test_the_verdict_names_host_and_rank(far: Bench) -> None:
    """The first failure is told with its host, and the ranks of all hosts are stopped."""
    far.write("train.py", HELLO + "import time\nif os.environ['RANK_ID'] == '3': 1 / 0\ntime.sleep(100)\n")
    done = far.mslaunch("train", "--hosts", "n1:2,n2:2")
    assert done.returncode == 1
    verdict = far.record()["verdict"]
    assert (verdict["rank"], verdict["host"], verdict["victims"]) == (3, "n2", [0, 1, 2])
    assert "First to fail: rank 3, host n2" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_on_any_host_when_the_launcher_goes(far: Bench, number: signal.Signals) -> None:
    """kill -9, Ctrl-C and SIGTERM of the launcher end everything everywhere."""
    far.write("train.py", SLEEP)
    launcher = far.start("train", "--hosts", "n1:2,n2:2", "--tail", "none")
    wait_for(lambda: far.runs.exists() and all("rank" in far.log(rank) for rank in range(4)), "all ranks")
    launcher.send_signal(number)
    wait_for(lambda: not far.leftovers(), "an empty machine")


def test_a_detached_run_is_followed_and_stopped_like_any_other(far: Bench) -> None:
    """--detach connects by itself; status, logs and stop need no hosts."""
    far.write("train.py", SLEEP)
    assert far.mslaunch("train", "--hosts", "n1:1,n2:1", "--detach").returncode == 0
    wait_for(lambda: "rank 1 on n2" in far.log(1), "rank 1")
    assert "n2" in far.mslaunch("status").stdout
    assert far.mslaunch("stop").returncode == 0
    assert far.record()["state"] == "stopped"


def test_a_secret_is_in_no_command_line_and_no_file(far: Bench) -> None:
    """--env K travels through the connection alone."""
    far.write("train.py", SLEEP + "\n")
    far.env["TOKEN_X"] = "hush-4711"
    launcher = far.start("train", "--hosts", "n1:1,n2:1", "--env", "TOKEN_X", "--tail", "none")
    wait_for(lambda: far.runs.exists() and "rank 1" in far.log(1), "rank 1")
    lines = [_command(path) for path in Path("/proc").glob("[0-9]*")]
    assert not [line for line in lines if "hush-4711" in line]
    pid = wait_for(lambda: far.record()["ranks"][1]["pid"], "the record to name its process")
    assert b"TOKEN_X=hush-4711" in Path(f"/proc/{pid}/environ").read_bytes()
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=60)
    found = [path for path in far.latest.rglob("*") if path.is_file() and b"hush-4711" in path.read_bytes()]
    assert found == []


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


LIMITS = ("--set", "launch.host_lost_after=5", "--set", "launch.launcher_lost_after=5")


def test_a_host_that_is_cut_off_is_named_and_all_others_are_stopped(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Both sides notice by themselves, and no process of the run is left anywhere."""
    far.write("train.py", SLEEP)
    with ssh_bed.cut_off(hosts, "island") as link:
        launcher = far.start("train", "--hosts", "here:1,island:1", "--tail", "none", *LIMITS)
        wait_for(lambda: far.runs.exists() and all("rank" in far.log(rank) for rank in range(2)), "both ranks")
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        assert launcher.wait(timeout=60) == 125
        wait_for(lambda: not processes_with(f"MSLAUNCH_RUN_DIR={far.latest}"), "an empty machine")
    verdict = far.record()["verdict"]
    assert (verdict["host"], verdict["cause"]) == ("island", "host lost")
    assert [rank.state for rank in find_run(runs_dir=far.runs).result.ranks] == ["stopped", "gone"]


@pytest.mark.parametrize("detached", [False, True])
def test_a_job_goes_on_with_the_hosts_that_are_left(far: Bench, hosts: ssh_bed.Bed, detached: bool) -> None:
    """With max_restarts and min_workers a lost host is not the end: its ranks are planned away, and it is said."""
    far.write("train.py", HELLO + "import time\nif os.environ['MSLAUNCH_ATTEMPT'] == '0': time.sleep(100)\n")
    launch = "{hosts: 'island:1,here:2', max_restarts: 1, min_workers: 2, backoff: 0}"
    far.write("cfg.yaml", f"device_num: 3\nlaunch: {launch}\n")
    with ssh_bed.cut_off(hosts, "island") as link:
        more = [*LIMITS, *(["--detach"] if detached else [])]
        launcher = far.start("train", "--config", "cfg.yaml", "--tail", "none", *more)
        wait_for(lambda: far.runs.exists() and all("rank" in far.log(rank) for rank in range(3)), "all ranks")
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        assert launcher.wait(timeout=60) == 0
        wait_for(lambda: far.record()["state"] == "succeeded", "the end")
        wait_for(lambda: not processes_with(f"MSLAUNCH_RUN_DIR={far.latest}"), "an empty machine")
    record = far.record()
    assert (record["world_size"], [rank["host"] for rank in record["ranks"]]) == (2, ["here", "here"])
    assert record["attempts"][0]["verdict"]["host"] == "island"
    assert far.environment(1)["RANK_SIZE"] == "2"
    assert json.loads((far.latest / "config.json").read_text())["device_num"] == 2
    assert launcher.stdout is not None
    told = (far.latest / "launcher.log").read_text() if detached else launcher.stdout.read()
    assert "with 2 ranks, without island" in told


def test_check_prints_a_table_and_names_what_is_missing(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Ready hosts: exit code 0. A full disk there: exit code 3, with host and fix."""
    done = far.mslaunch("check", "--hosts", "n1,n2")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["n1", "yes"], ["n2", "yes"]]
    with ssh_bed.apart(hosts, "tiny", far.folder, size="1m"):
        done = far.mslaunch("check", "--hosts", "n1,tiny", "--json")
        assert done.returncode == 3
        assert [host["ready"] for host in json.loads(done.stdout)] == [True, False]
        assert "tiny: the disk is full" in done.stderr
        assert far.mslaunch("train", "--hosts", "n1,tiny").returncode == 3
    assert not far.runs.exists()


def test_unknown_and_changed_host_keys_are_refused(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Unknown: the fix, or --accept-new-host-keys. Changed: refused, whatever is accepted."""
    hosts.name_host("new", "127.0.3.1", hosts.port, known=False)
    done = far.mslaunch("train", "--hosts", "n1,new")
    assert done.returncode == 3
    assert "new: its host key is unknown" in done.stderr
    assert not far.runs.exists()
    assert far.mslaunch("train", "--hosts", "n1,new", "--accept-new-host-keys").returncode == 0
    other = ssh_bed.make_key(hosts.folder / f"other-{time.time_ns()}")
    with (hosts.home / ".ssh/known_hosts").open("a") as known:
        known.write(f"[127.0.3.2]:{hosts.port} {other}\n")
    hosts.name_host("changed", "127.0.3.2", hosts.port, known=False)
    done = far.mslaunch("train", "--hosts", "n1,changed", "--accept-new-host-keys")
    assert done.returncode == 3
    assert "changed: its host key has CHANGED" in done.stderr


@pytest.mark.parametrize(
    ("host", "more", "words"),
    [
        ("nowhere.invalid", (), "nowhere.invalid: cannot be reached"),
        ("n3", ("--set", "launch.python=/no/such/python"), "Name a Python that is there with launch.python"),
        ("n3", ("--set", "device_target=CPU", "--set", "launch.python=/usr/bin/python3"), "has no MindSpore"),
    ],
)
def test_hosts_that_are_not_ready_are_named(far: Bench, host: str, more: tuple[str, ...], words: str) -> None:
    """Exit code 3, the host and the fix; nothing is started."""
    far.write("cfg.yaml", "device_target: CPU\n")
    done = far.mslaunch("train", "--hosts", f"n1,{host}", "--config", "cfg.yaml", *more)
    assert done.returncode == 3, done.stdout + done.stderr
    assert words in done.stderr
    assert f"{host}: " in done.stderr
    assert not far.runs.exists()


def test_hosts_that_were_ready_are_left_as_they_were(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Where one host cannot be had, the agents on the others end too, whatever they had got so far."""
    names = [f"ready{number}-{os.getpid()}" for number in range(8)]
    for number, name in enumerate(names):
        hosts.name_host(name, f"127.0.4.{number + 1}", hosts.port)
    for _ in range(3):
        assert far.mslaunch("train", "--hosts", ",".join([*names, "nowhere.invalid"])).returncode == 3

    def agents() -> list[str]:
        lines = [_command(path) for path in Path("/proc").glob("[0-9]*")]
        return [line for line in lines if any(name in line for name in names) and "memfd_create" in line]

    wait_for(lambda: not agents(), "no agent left")


def test_hosts_behind_others_are_reached_through_them(far: Bench, hosts: ssh_bed.Bed) -> None:
    """ProxyJump, also over two hosts, and ProxyCommand; a jump that is not there is what fails."""
    hosts.name_host("behind", "127.0.1.9", hosts.port)
    plain = hosts.folder / "plain.config"
    plain.write_text(hosts.config + f"Host *\n  UserKnownHostsFile {hosts.home}/.ssh/known_hosts\n")
    command = f"ProxyCommand ssh -F {plain} -W %h:%p n1"
    for way, code in (
        ("ProxyJump n1", 0),
        ("ProxyJump n1,n2", 0),
        (command, 0),
        ("ProxyJump nowhere.invalid,n2", 3),
    ):
        (hosts.home / ".ssh/config").write_text(hosts.config + f"Host behind\n  {way}\n")
        done = far.mslaunch("train", "--hosts", "behind")
        assert done.returncode == code, (way, done.stderr)
    (hosts.home / ".ssh/config").write_text(hosts.config)


def test_rank_tables_are_probed_over_ssh(far: Bench) -> None:
    """A host without Ascend devices, as these are, is named."""
    done = far.mslaunch("rank-table", "probe", "--hosts", "n1,n2")
    assert done.returncode == 3
    assert "n1: no Ascend device was found" in done.stderr


def test_a_wrong_key_is_refused(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The login that was tried is named."""
    ssh_bed.make_key(hosts.folder / "wrong")
    (hosts.home / ".ssh/config").write_text(hosts.config.replace(f"{hosts.folder}/id", f"{hosts.folder}/wrong"))
    try:
        done = far.mslaunch("train", "--hosts", "n1")
    finally:
        (hosts.home / ".ssh/config").write_text(hosts.config)
    assert done.returncode == 3
    assert f"n1: refuses the login of {os.environ.get('USER', 'root')}" in done.stderr


def test_a_blocked_port_is_noticed_before_the_start(far: Bench, hosts: ssh_bed.Bed) -> None:
    """A real connection is made from every host, so a route that is closed shows."""
    with ssh_bed.cut_off(hosts, "walled") as link:
        subprocess.run(
            ["ip", "netns", "exec", link.replace("mslv", "msl"), "ip", "route", "add", "blackhole", "127.0.1.1"]
        )
        done = far.mslaunch("train", "--hosts", "n1,walled")
    assert done.returncode == 3
    assert "walled: cannot connect to 127.0.1.1 port" in done.stderr
