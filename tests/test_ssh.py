"""Jobs over real SSH: many hosts on this machine, one command, one verdict, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mslaunch.agent.guard import processes_with
from tests import ssh_bed
from tests.conftest import Bench, wait_for

HELLO = """
import os
print("rank", os.environ["RANK_ID"], "on", os.environ["MSLAUNCH_HOST"], "device", os.environ["DEVICE_ID"], flush=True)
"""
FAILS = "import os, time\nif os.environ['RANK_ID'] == '3': raise ValueError('NaN')\ntime.sleep(60)\n"
SLEEP = HELLO + "import time; time.sleep(100)\n"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_bed.Bed]:
    ssh_bed.needs_sshd()
    with ssh_bed.bed(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.fixture
def far(bench: Bench, hosts: ssh_bed.Bed) -> Bench:
    """A folder to launch from, with a home whose ~/.ssh knows the hosts."""
    bench.env["HOME"] = str(hosts.home)
    bench.write("train.py", HELLO)
    return bench


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
    wait_for(lambda: not far.leftovers(), "an empty machine", 15)


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
    pid = far.record()["ranks"][1]["pid"]
    assert b"TOKEN_X=hush-4711" in Path(f"/proc/{pid}/environ").read_bytes()
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=30)
    found = [path for path in far.latest.rglob("*") if path.is_file() and b"hush-4711" in path.read_bytes()]
    assert found == []


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_files_go_to_hosts_that_do_not_share_them_and_logs_come_back(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Code is sent, logs are collected, what was brought is removed; what the job wrote stays there and is said."""
    far.write("helper.py", "WORD = 'brought along'\n")
    far.write("train.py", HELLO + "import helper; print(helper.WORD); open('weights.bin', 'w').write('x')\n")
    with ssh_bed.apart(hosts, "own1", far.folder):
        done = far.mslaunch("train", "--hosts", "n1:1,own1:2", "--tail", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "brought along" in far.log(1)
    assert "[own1 rank 2] brought along" in done.stdout
    assert not (far.latest / "rank_1/weights.bin").exists()
    assert f"own1 keeps 2 files that the job wrote: {far.latest}/rank_" in done.stdout


def test_logs_of_hosts_with_files_of_their_own_can_be_read_while_the_job_runs(far: Bench, hosts: ssh_bed.Bed) -> None:
    """What is new is fetched every few seconds, once; in the end the log is the same as over there."""
    far.write("train.py", "import time\nfor i in range(60):\n    print('line', i, flush=True)\n    time.sleep(0.1)\n")
    with ssh_bed.apart(hosts, "own4", far.folder):
        launcher = far.start("train", "--hosts", "n1:1,own4:1", "--tail", "none")
        wait_for(
            lambda: far.runs.exists() and "line 3" in far.mslaunch("logs", "--rank", "1").stdout, "its first lines"
        )
        assert launcher.poll() is None
        assert "line 59" not in far.log(1)
        assert launcher.wait(timeout=30) == 0
    assert far.log(1) == "".join(f"line {number}\n" for number in range(60))


def test_a_failure_on_a_host_of_its_own_comes_home_with_its_log(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The verdict has the traceback of a file that this machine never saw."""
    far.write("train.py", "import os\nif os.environ['RANK_ID'] == '1':\n    raise OSError('no such disk')\n")
    with ssh_bed.apart(hosts, "own2", far.folder):
        done = far.mslaunch("train", "--hosts", "n1:1,own2:1")
    assert done.returncode == 1
    assert far.record()["verdict"]["host"] == "own2"
    assert "no such disk" in far.log(1)


def test_logs_of_a_lost_host_are_collected_later(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The connection broke, the run failed; the host is back, and `collect` fetches what it still has."""
    far.write("train.py", SLEEP)
    with ssh_bed.apart(hosts, "own3", far.folder) as server:
        launcher = far.start("train", "--hosts", "n1:1,own3:1", "--tail", "1")
        assert launcher.stdout is not None
        wait_for(lambda: "rank 1 on own3" in str(launcher.stdout and launcher.stdout.readline()), "rank 1")
        for session in psutil.Process(server.pid).children():
            session.kill()
        assert launcher.wait(timeout=30) == 125
        assert far.log(1) == ""
        done = far.mslaunch("collect")
        assert done.returncode == 0, done.stderr
        assert "rank 1 on own3" in far.log(1)
    done = far.mslaunch("collect")
    assert done.returncode == 3
    assert "own3: cannot be reached" in done.stdout + done.stderr
    far.write("train.py", HELLO)
    assert far.mslaunch("train").returncode == 0
    assert "ran on this machine" in far.mslaunch("collect").stderr


def test_a_host_that_is_cut_off_is_named_and_all_others_are_stopped(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Both sides notice by themselves: within 15 s no process of the run is left anywhere."""
    far.write("train.py", SLEEP)
    with ssh_bed.cut_off(hosts, "island") as link:
        launcher = far.start("train", "--hosts", "here:1,island:1", "--tail", "none", "--set", "launch.lost_after=5")
        wait_for(lambda: far.runs.exists() and all("rank" in far.log(rank) for rank in range(2)), "both ranks")
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        assert launcher.wait(timeout=30) == 125
        wait_for(lambda: not processes_with(f"MSLAUNCH_RUN_DIR={far.latest}"), "an empty machine", 15)
    verdict = far.record()["verdict"]
    assert (verdict["host"], verdict["cause"]) == ("island", "host lost")


@pytest.mark.parametrize("detached", [False, True])
def test_a_job_goes_on_with_the_hosts_that_are_left(far: Bench, hosts: ssh_bed.Bed, detached: bool) -> None:
    """With max_restarts and min_workers a lost host is not the end: its ranks are planned away, and it is said."""
    far.write("train.py", HELLO + "import time\nif os.environ['MSLAUNCH_ATTEMPT'] == '0': time.sleep(100)\n")
    launch = "{hosts: 'island:1,here:2', max_restarts: 1, min_workers: 2, backoff: 0, lost_after: 5}"
    far.write("cfg.yaml", f"device_num: 3\nlaunch: {launch}\n")
    with ssh_bed.cut_off(hosts, "island") as link:
        launcher = far.start("train", "--config", "cfg.yaml", "--tail", "none", *(["--detach"] if detached else []))
        wait_for(lambda: far.runs.exists() and all("rank" in far.log(rank) for rank in range(3)), "all ranks")
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        assert launcher.wait(timeout=40) == 0
        wait_for(lambda: far.record()["state"] == "succeeded", "the end", 40)
        wait_for(lambda: not processes_with(f"MSLAUNCH_RUN_DIR={far.latest}"), "an empty machine", 15)
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

    wait_for(lambda: not agents(), "no agent left", 10)


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


ADD_UP = """
import mindspore as ms
from mindspore.communication import get_rank, init
ms.set_context(device_target="CPU", mode=ms.PYNATIVE_MODE)
init()
print("sum", ms.ops.AllReduce()(ms.Tensor([get_rank() + 1.0], ms.float32)).asnumpy()[0])
"""


@pytest.mark.mindspore
def test_allreduce_over_two_hosts(far: Bench) -> None:
    """Two hosts with two ranks each add up."""
    far.write("train.py", ADD_UP)
    done = far.mslaunch("train", "--hosts", "n1:2,n2:2")
    assert done.returncode == 0, done.stdout
    assert all("sum 10.0" in far.log(rank) for rank in range(4))


@pytest.mark.mindspore
@pytest.mark.parametrize("method", ["msrun", "rank-table"])
def test_the_scripts_of_other_methods_run_on_every_host(far: Bench, hosts: ssh_bed.Bed, method: str) -> None:
    """One script a host, with its node's number; msrun tells its master by address, so the second host is apart."""
    far.write("train.py", ADD_UP)
    with ssh_bed.cut_off(hosts, "second"):
        done = far.mslaunch("train", "--hosts", "here:1,second:1", "--method", method)
    assert done.returncode == 0, done.stdout
    assert all("sum 3.0" in far.log(rank) for rank in range(2))


@pytest.fixture
def open_mpi(far: Bench, hosts: ssh_bed.Bed, needs_mpirun: None) -> Bench:
    """Open MPI calls ssh by itself, on the first host: it needs the same keys and names there."""
    del needs_mpirun
    ssh = f"ssh -F {hosts.home}/.ssh/config -o UserKnownHostsFile={hosts.home}/.ssh/known_hosts"
    far.env["OMPI_MCA_plm_rsh_agent"] = ssh
    return far


@pytest.mark.mindspore
def test_mpirun_reaches_the_other_hosts_itself(open_mpi: Bench) -> None:
    open_mpi.write("train.py", ADD_UP)
    done = open_mpi.mslaunch("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    assert done.returncode == 0, done.stdout
    assert all("sum 10.0" in open_mpi.log(rank) for rank in range(4))
    assert [rank["exit_code"] for rank in open_mpi.record()["ranks"]] == [0] * 4


def test_a_rank_that_mpirun_started_elsewhere_is_named(open_mpi: Bench) -> None:
    open_mpi.write("train.py", FAILS)
    done = open_mpi.mslaunch("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    assert done.returncode == 1
    assert "First to fail: rank 3, host n2, device 1 (exit code 1)" in done.stdout


def test_mpirun_over_hosts_leaves_nothing_when_the_launcher_is_killed(open_mpi: Bench) -> None:
    open_mpi.write("train.py", SLEEP)
    launcher = open_mpi.start("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    wait_for(lambda: all("rank" in open_mpi.log(rank) for rank in range(4)), "all ranks")
    launcher.kill()
    wait_for(lambda: not open_mpi.leftovers(), "every process to end", 15)
