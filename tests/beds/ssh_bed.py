"""Real SSH servers on this machine: hosts that share our files, that have their own, or that can be cut off."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

HELLO = """
import os
print("rank", os.environ["RANK_ID"], "on", os.environ["MSLAUNCH_HOST"], "device", os.environ["DEVICE_ID"], flush=True)
"""
FAILS = "import os, time\nif os.environ['RANK_ID'] == '3': raise ValueError('NaN')\ntime.sleep(60)\n"
SLEEP = HELLO + "import time; time.sleep(100)\n"
SSHD = "/usr/sbin/sshd"
HOSTS = 32
CONFIG = """Port {port}
ListenAddress {listen}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized
PidFile {folder}/pid-{port}
StrictModes no
UsePAM no
MaxStartups 200
MaxSessions 200
PasswordAuthentication no
SetEnv HOME={folder}/home
"""
# A host whose start-up files leave something behind that writes to standard error now and then.
NOISY = """#!/bin/sh
while sleep 0.03; do echo "a word from the login shell" >&2; done </dev/null >/dev/null &
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


def needs_sshd() -> None:
    if not Path(SSHD).exists():
        pytest.skip("sshd is not installed (Debian: openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("an sshd of one's own with namespaces needs root")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def address(number: int) -> str:
    """The address of host n<number>: all of 127.0.0.0/8 is this machine."""
    return f"127.0.1.{number}" if number < 255 else f"127.1.{number >> 8}.{number & 255}"


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    kind, key, *_ = path.with_suffix(".pub").read_text().split()
    return f"{kind} {key}"


class Bed:
    """A home folder with keys and ~/.ssh/config, and servers that know them. Hosts n1, n2 and so on share our files."""

    def __init__(self, folder: Path, hosts: int = HOSTS) -> None:
        self.folder = folder
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        Path("/run/sshd").mkdir(exist_ok=True)
        self.host_key = make_key(folder / "host_key")
        (folder / "authorized").write_text(make_key(folder / "id") + "\n")
        self.names: dict[str, str] = {}
        self.known = ""
        self.port = free_port()
        for number in range(1, hosts + 1):
            self.name_host(f"n{number}", address(number), self.port)
        self.servers = [self.serve(self.port)]

    def name_host(self, name: str, address: str, port: int, known: bool = True) -> None:
        """Enter a host into ~/.ssh/config and, unless it is to be unknown, into known_hosts."""
        self.names[name] = f"Host {name}\n  HostName {address}\n  Port {port}\n  IdentityFile {self.folder}/id\n"
        (self.home / ".ssh/config").write_text(self.config)
        if known:
            self.known += f"[{address}]:{port} {self.host_key}\n"
            (self.home / ".ssh/known_hosts").write_text(self.known)

    @property
    def config(self) -> str:
        return "".join(self.names.values())

    def serve(self, port: int, *inside: str, listen: str = "0.0.0.0", options: str = "") -> subprocess.Popen[bytes]:
        """Start a server, behind a command that puts it elsewhere where one is given."""
        conf = self.folder / f"sshd-{port}.conf"
        conf.write_text(CONFIG.format(port=port, folder=self.folder, listen=listen) + options)
        log = (self.folder / f"sshd-{port}.log").open("ab")
        server = subprocess.Popen([*inside, SSHD, "-D", "-e", "-f", str(conf)], stdout=log, stderr=log)
        log.close()
        return server

    def close(self) -> None:
        for server in self.servers:
            end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """End a server with its sessions: one that was cut off would wait for its peer for hours."""
    sessions = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    server.wait(timeout=60)
    for session in sessions:
        with suppress(psutil.NoSuchProcess):
            session.kill()


def wait_for_port(address: str, port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"no server at {address}:{port}")


@contextmanager
def bed(folder: Path, hosts: int = HOSTS) -> Iterator[Bed]:
    made = Bed(folder, hosts)
    try:
        wait_for_port("127.0.1.1", made.port)
        yield made
    finally:
        made.close()


@contextmanager
def noisy(made: Bed, *names: str) -> Iterator[str]:
    """Hosts that write to standard error all the time; yields the option that makes a server such a host."""
    script = made.folder / "noisy"
    script.write_text(NOISY)
    script.chmod(0o755)
    option = f"ForceCommand {script}\n"
    port = free_port()
    server = made.serve(port, options=option)
    try:
        wait_for_port("127.0.1.1", port)
        for number, name in enumerate(names, 1):
            made.name_host(name, f"127.0.3.{number}", port)
        yield option
    finally:
        end(server)


@contextmanager
def apart(
    made: Bed, name: str, hidden: Path, size: str = "64m", options: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A host that does not see a folder of ours: a small file system of its own lies over it. Yields its server."""
    port = free_port()
    mount = f'mount -t tmpfs -o size={size} none {hidden} && exec "$@"'
    inside = ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh")
    server = made.serve(port, *inside, options=options)
    try:
        wait_for_port("127.0.1.1", port)
        made.name_host(name, f"127.0.2.{len(made.names)}", port)
        yield server
    finally:
        end(server)


@contextmanager
def cut_off(made: Bed, name: str) -> Iterator[str]:
    """A host in a network namespace; yields the interface that, set down, cuts it off. Our side is 10.213.x.1."""
    if not shutil.which("ip"):
        pytest.skip("ip is not installed (Debian: iproute2)")
    space, link = f"msl{os.getpid() % 10000}", f"mslv{os.getpid() % 10000}"
    net = f"10.213.{os.getpid() % 256}"
    port = free_port()
    commands = (
        f"ip netns add {space}",
        f"ip link add {link} type veth peer name {link}p netns {space}",
        f"ip addr add {net}.1/24 dev {link}",
        f"ip link set {link} up",
        f"ip -n {space} addr add {net}.2/24 dev {link}p",
        f"ip -n {space} link set {link}p up",
        f"ip -n {space} link set lo up",
    )
    server = None
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        server = made.serve(port, "ip", "netns", "exec", space)
        wait_for_port(f"{net}.2", port)
        made.name_host(name, f"{net}.2", port)
        made.name_host("here", f"{net}.1", made.port)
        yield link
    finally:
        if server is not None:
            end(server)
        subprocess.run(["ip", "link", "del", link], capture_output=True)
        subprocess.run(["ip", "netns", "del", space], capture_output=True)
