"""Many hosts over SSH: busy servers, limits of this machine, and whose ssh configuration counts."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import HostsNotReady
from mslaunch.hosts import Host
from mslaunch.launcher.check import converse
from mslaunch.transports.process import ProcessChannel
from mslaunch.transports.ssh import channel as failures
from mslaunch.transports.ssh import run_commands
from mslaunch.transports.ssh.channel import config_for_home
from mslaunch.transports.streams import Waiting
from tests.beds import ssh_bed
from tests.conftest import MSLAUNCH, Bench, wait_for


@contextmanager
def server(made: ssh_bed.Bed, names: list[str], subnet: int, options: str) -> Iterator[Path]:
    """A server of its own for some hosts; yields its log."""
    port = ssh_bed.free_port()
    process = made.serve(port, options=options)
    try:
        ssh_bed.wait_for_port("127.0.1.1", port)
        for number, name in enumerate(names, 1):
            made.name_host(name, f"127.0.{subnet}.{number}", port)
        yield made.folder / f"sshd-{port}.log"
    finally:
        ssh_bed.end(process)


def test_a_server_that_drops_connections_is_tried_again(far: Bench, hosts: ssh_bed.Bed) -> None:
    """MaxStartups: sshd lets few log in at once, and drops the others."""
    names = [f"busy{number}" for number in range(6)]
    with server(hosts, names, 5, "MaxStartups 2:100:2\n") as log:
        done = far.mslaunch("check", "--hosts", ",".join(names))
        assert done.returncode == 0, done.stderr
        assert "MaxStartups" in log.read_text()


def test_without_ssh_the_fix_is_named(far: Bench) -> None:
    done = far.mslaunch("train", "--hosts", "n1", PATH="/nowhere")
    assert done.returncode == 3
    assert "ssh is not on PATH" in done.stderr


@pytest.mark.parametrize(("limit", "code"), [("-n", 3), ("-S -n", 0)])
def test_hosts_that_need_more_open_files_than_allowed_are_refused(far: Bench, limit: str, code: int) -> None:
    """The hard limit counts: a soft one is raised."""
    names = ",".join(f"n{number}" for number in range(1, 13))
    limited = ["bash", "-c", f'ulimit {limit} 100 && exec "$@"', "bash"]
    command = [*limited, MSLAUNCH, "check", "--hosts", names]
    done = subprocess.run(command, cwd=far.folder, env=far.env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code:
        assert "12 hosts need " in done.stderr
        assert "open files, and the limit here is 100" in done.stderr


def test_ssh_reads_the_home_of_the_password_database_itself(far: Bench, hosts: ssh_bed.Bed) -> None:
    """There everything counts as in the shell, with no configuration of ours in between."""
    user = pwd.getpwuid(os.getuid())
    assert config_for_home({"HOME": user.pw_dir}) is None
    lines = Path("/etc/passwd").read_text().splitlines()
    moved = f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{hosts.home}:/bin/sh"
    database = far.write("passwd", "\n".join([moved, *lines]) + "\n")
    inside = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        f'mount --bind {database} /etc/passwd; exec "$@"',
    ]
    command = [*inside, "sh", MSLAUNCH, "check", "--hosts", "n1"]
    done = subprocess.run(command, cwd=far.folder, env=far.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_home_has_its_own_configuration_keys_and_known_hosts(tmp_path: Path) -> None:
    """What the user's file says comes first, then the system's, then the defaults below this $HOME."""
    (tmp_path / ".ssh").mkdir()
    for name in ("config", "id_rsa"):
        (tmp_path / ".ssh" / name).touch()
    text = config_for_home({"HOME": str(tmp_path)})
    assert text is not None
    assert text.startswith(f'Include "{tmp_path}/.ssh/config"\nMatch all\n')
    assert f'UserKnownHostsFile "{tmp_path}/.ssh/known_hosts"' in text
    assert text.endswith(f'IdentityFile "{tmp_path}/.ssh/id_rsa"\n')


def test_ssh_that_hangs_in_a_login_ends_with_the_launcher(far: Bench, hosts: ssh_bed.Bed) -> None:
    """A server that never answers: the end of its input does not end ssh there."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts.name_host("mute", "127.0.0.1", silent.getsockname()[1])
        launcher = far.start("check", "--hosts", "mute")
        connection, _ = silent.accept()
        assert _ssh_processes("mute")
        launcher.kill()
        wait_for(lambda: not _ssh_processes("mute"), "ssh to end")
        connection.close()


def _ssh_processes(host: str) -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ssh") and host.encode() in words:
            lines.append(str(words))
    return lines


def test_several_commands_share_one_connection(hosts: ssh_bed.Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints is returned, nothing where it fails."""
    monkeypatch.setenv("HOME", str(hosts.home))
    commands = (("echo", "a b"), ("false",), ("printenv", "SSH_CONNECTION"), ("printenv", "SSH_CONNECTION"))
    named = (Host("n1", "n1", ()), Host("n2", "n2", ()))
    for said in run_commands(named, lambda _, run: [run(command) for command in commands]):
        assert said[:2] == ["a b\n", None]
        assert said[2] == said[3] != ""


@pytest.mark.parametrize(
    ("said", "sentence", "retries"),
    [
        ("Host key for [n1]:2 has changed and you have requested strict checking.", "ssh-keygen -R '[n1]:2'", 0),
        ("No ED25519 host key is known for n1 and you have requested strict checking.", "host key is unknown", 0),
        ("me@10.0.0.1: Permission denied (publickey).", "refuses the login of me.", 0),
        ("Received disconnect from n1: Too many authentication failures", "refuses the login of root.", 0),
        ("ssh: Could not resolve hostname n1: Name or service not known", "at n1: n1: Name or service not known.", 0),
        ("ssh: connect to host n1 port 22: Connection timed out", "at n1: Connection timed out. Try `ssh n1`", 0),
        ("ssh: connect to host n1 port 22: Connection refused", "at n1: Connection refused.", failures.REFUSED_RETRIES),
        ("kex_exchange_identification: read: Connection reset by peer", "reset by peer.", failures.BUSY_RETRIES),
        ("Connection timed out during banner exchange", "during banner exchange.", failures.BUSY_RETRIES),
        ("welcome\nBad configuration option: colour", "at n1: Bad configuration option: colour.", 0),
        ("", "at n1: ssh ended without a message.", 0),
    ],
)
def test_what_ssh_says_becomes_a_sentence(said: str, sentence: str, retries: int) -> None:
    """One row for each kind of failure; what may pass by itself is tried again."""
    assert sentence in failures.explain(Host("n1", "n1", ()), said, "root")
    assert failures.find_rule(said).retries == retries


@pytest.mark.parametrize("jump", ["Could not resolve hostname j: Name or service not known", "me@j: Permission denied"])
def test_the_failure_of_a_jump_comes_before_what_follows_from_it(jump: str) -> None:
    """The connection through it is closed too; that is not worth another try."""
    said = f"ssh: {jump}\nkex_exchange_identification: Connection closed by remote host"
    assert failures.find_rule(said).retries == 0


ANSWER = """
import sys, time
from mslaunch.shared import wire
time.sleep(float(sys.argv[2]))
sys.stdout.buffer.write(wire.MAGIC + wire.encode({"ev": "reached", "host": sys.argv[1], "time": 1.0, "why": None}))
sys.stdout.buffer.flush()
time.sleep(60)
"""


def _answering(host: str, seconds: float) -> ProcessChannel:
    return ProcessChannel.start(host, [sys.executable, "-c", ANSWER, host, str(seconds)])


def test_slow_hosts_are_waited_for_as_long_as_hosts_answer() -> None:
    """What counts is the time without any answer, not the time for all of them."""
    channels = [_answering(f"h{number}", 1.0 + 1.5 * number) for number in range(3)]
    orders: dict[str, dict[str, Any]] = {f"h{number}": {"do": "reach"} for number in range(3)}
    try:
        assert converse(channels, orders, "reached", 3.0).keys() == orders.keys()
        started = time.monotonic()
        with pytest.raises(HostsNotReady, match="h2: no answer within 1 s"):
            converse(channels[2:], {"h2": {"do": "reach"}}, "reached", 1.0)
        assert time.monotonic() - started < 10
    finally:
        for channel in channels:
            threading.Thread(target=channel.abort).start()


def test_a_host_that_accepts_and_never_answers_is_given_up(far: Bench, hosts: ssh_bed.Bed) -> None:
    """After launch.connect_timeout, tries included, with the setting's name; what answered is not started."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts.name_host("mute", "127.0.0.1", mute.getsockname()[1])
        done = far.mslaunch("check", "--hosts", "n1:1,mute:1", MSLAUNCH_CONNECT_TIMEOUT="2")
    assert done.returncode == 3
    assert "mute: no answer within 2 s (launch.connect_timeout). Try `ssh mute`." in done.stderr


def test_hosts_that_are_waited_for_are_named() -> None:
    """After 10, 30 and 60 s, then every minute: not every turn, and at most eight by name."""
    told: list[str] = []
    waiting = Waiting(told.append)
    for second in range(300):
        waiting.look(second / 2, {f"n{number}" for number in range(10, 20 if second < 50 else 11)})
    names = ", ".join(f"n{number}" for number in range(10, 18))
    few = [f"waiting for n10 ({seconds} s)" for seconds in (30, 60, 120)]
    assert told == [f"waiting for {names} and 2 more (10 s)", *few]
