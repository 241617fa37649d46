"""Agents over SSH: one connection and one command a host; program, orders and secrets travel through it."""

from __future__ import annotations

import getpass
import os
import shlex
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from mslaunch.agent import wire
from mslaunch.errors import HostsNotReady, MslaunchError
from mslaunch.launch.bundle import AGENT_BOOT, agent_stream
from mslaunch.plan.model import Host

Ask = Callable[[Sequence[str]], str | None]

AT_ONCE = 64
CONNECT_SECONDS = 15.0
MOST_JUMPS = 8
_WINDOW = 1 << 20


class SshChannel:
    """An agent at the other end of an SSH connection."""

    def __init__(self, host: Host, client: paramiko.SSHClient, channel: paramiko.Channel) -> None:
        self.hosts: tuple[str, ...] = (host.name,)
        self.address = host.address
        self.hint = f"Try `ssh {host.name}`."
        self._client = client
        self._channel = channel
        self._decoder = wire.Decoder()
        self._lock = threading.Lock()
        self.is_open = True

    def fileno(self) -> int:
        return self._channel.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        data = self._channel.recv(1 << 16)
        self.is_open = bool(data)
        return self._decoder.feed(data) if data else None

    def send(self, message: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):  # its end shows on the other stream
            self._channel.sendall(wire.encode(message))

    def last_words(self) -> str:
        """What the host's shell had to say, for an agent that did not start."""
        self._channel.settimeout(1.0)
        try:
            return self._channel.recv_stderr(4096).decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        self.is_open = False
        self._client.close()


def open_ssh(hosts: Sequence[Host], python: str, accept_new_keys: bool = False) -> list[SshChannel]:
    """Connect to all hosts and start an agent on each, or name every host that cannot be had."""
    channels, troubles = try_hosts(hosts, python, accept_new_keys)
    if troubles:
        for channel in channels:
            channel.close()
        raise HostsNotReady(troubles)
    return channels


def try_hosts(hosts: Sequence[Host], python: str, accept_new_keys: bool = False) -> tuple[list[SshChannel], list[str]]:
    """Connect to all hosts at once; return those that could be had, and why the others could not."""
    known = _Known(accept_new_keys)
    program = agent_stream()

    def one(host: Host) -> SshChannel | str:
        try:
            return _open(host, known, program, python)
        except Exception as error:
            return explain(host, error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        opened = list(pool.map(one, hosts))
    troubles = [f"{host.name}: {got}" for host, got in zip(hosts, opened, strict=True) if isinstance(got, str)]
    return [got for got in opened if isinstance(got, SshChannel)], troubles


T = TypeVar("T")


def on_hosts(hosts: Sequence[Host], work: Callable[[Host, Ask], T], accept_new_keys: bool = False) -> list[T]:
    """Do the same on all hosts at once, with a function that runs a command there; what goes wrong is named by host."""
    known = _Known(accept_new_keys)

    def one(host: Host) -> T | str:
        try:
            with _connect(host, known) as client:
                return work(host, partial(_ask, client))
        except MslaunchError:
            raise
        except Exception as error:  # as above
            return explain(host, error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(one, hosts))
    troubles = [f"{host.name}: {got}" for host, got in zip(hosts, done, strict=True) if isinstance(got, str)]
    if troubles:
        raise HostsNotReady(troubles)
    return [got for got in done if not isinstance(got, str)]


def _ask(client: paramiko.SSHClient, command: Sequence[str]) -> str | None:
    _, out, _ = client.exec_command(shlex.join(command), timeout=30.0)
    text = out.read().decode(errors="replace")
    return text if out.channel.recv_exit_status() == 0 else None


def _open(host: Host, known: _Known, program: bytes, python: str) -> SshChannel:
    host = replace(host, address=known.settings(host)["hostname"])  # a name of ~/.ssh/config means nothing to MindSpore
    client = _connect(host, known)
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session(window_size=_WINDOW, timeout=CONNECT_SECONDS)
    command = f"exec {shlex.join([host.python or python, '-I', '-S', '-u', '-c', AGENT_BOOT, host.name])}"
    channel.exec_command(command)
    with suppress(OSError):  # an agent that did not start is told by its silence
        channel.sendall(program)
    return SshChannel(host, client, channel)


class _Known:
    """What is configured for SSH: known hosts, ~/.ssh/config, and what is done about unknown keys."""

    def __init__(self, accept_new: bool) -> None:
        self.accept_new = accept_new
        self.config = paramiko.SSHConfig()
        path = Path("~/.ssh/config").expanduser()
        if path.is_file():
            self.config = paramiko.SSHConfig.from_path(str(path))
        self._lock = threading.Lock()

    def settings(self, host: Host) -> dict[str, Any]:
        found = self.config.lookup(host.name)
        return {
            "hostname": found.get("hostname", host.name),
            "port": host.port or int(found.get("port", 22)),
            "username": host.user or found.get("user") or getpass.getuser(),
            "key_filename": [os.path.expanduser(name) for name in found.get("identityfile", [])] or None,  # noqa: PTH111
            "proxy": found.get("proxycommand"),
            "jump": found.get("proxyjump"),
            "known": found.get("userknownhostsfile", "~/.ssh/known_hosts").split(),
        }

    def remember(self, client: paramiko.SSHClient, files: list[str]) -> None:
        """Load the known keys; a key that differs from a known one is always refused."""
        client.load_system_host_keys("/etc/ssh/ssh_known_hosts") if Path("/etc/ssh/ssh_known_hosts").is_file() else None
        for name in files:
            path = Path(name).expanduser()
            if path.is_file():
                client.load_system_host_keys(str(path))
        policy = _Add(Path(files[0]).expanduser(), self._lock) if self.accept_new else paramiko.RejectPolicy()
        client.set_missing_host_key_policy(policy)


class _Add(paramiko.MissingHostKeyPolicy):
    """--accept-new-host-keys: write a key that was never seen down, as ssh does."""

    def __init__(self, path: Path, lock: threading.Lock) -> None:
        self._path = path
        self._lock = lock

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client
        with self._lock:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")


def _connect(host: Host, known: _Known, via: str = "", depth: int = 0) -> paramiko.SSHClient:
    """Connect to a host, through those that `via` or its ProxyJump names."""
    settings = known.settings(host)
    jump = via or settings["jump"]
    client = paramiko.SSHClient()
    known.remember(client, settings["known"])
    sock: Any = None
    if settings["proxy"] and settings["proxy"].lower() != "none":
        sock = paramiko.ProxyCommand(settings["proxy"])
    elif jump and jump.lower() != "none" and depth < MOST_JUMPS:
        sock = _through(jump, settings, known, depth)
    client.connect(
        settings["hostname"],
        settings["port"],
        settings["username"],
        key_filename=settings["key_filename"],
        sock=sock,
        timeout=CONNECT_SECONDS,
        banner_timeout=60.0,
        auth_timeout=60.0,
        compress=False,
    )
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(5)
    return client


def _through(jump: str, settings: dict[str, Any], known: _Known, depth: int) -> paramiko.Channel:
    """ProxyJump: the last of the named hosts carries the connection; those before carry that one."""
    *before, last = jump.split(",")
    user, _, rest = last.rpartition("@")
    name, _, port = rest.partition(":")
    middle = _connect(
        Host(name, name, (), user or None, int(port) if port else None), known, ",".join(before), depth + 1
    )
    transport = middle.get_transport()
    assert transport is not None
    channel = transport.open_channel("direct-tcpip", (settings["hostname"], settings["port"]), ("127.0.0.1", 0))
    channel.middle = middle  # type: ignore[attr-defined]  # it must live as long as the channel does
    return channel


def explain(host: Host, error: Exception) -> str:
    """Say why a host cannot be had, and what to do."""
    where = f"{host.address}{f' port {host.port}' if host.port else ''}"
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"its host key has CHANGED since it was written to known_hosts. If that is right, remove the old one with "
            f"`ssh-keygen -R '{_known_name(host)}'` and connect once with ssh; if not, somebody may be in between."
        )
    if isinstance(error, paramiko.AuthenticationException):
        user = host.user or getpass.getuser()
        return f"refuses the login of {user}. Try `ssh {user}@{host.address}`; it must work without a password."
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        return (
            f"its host key is unknown. Connect once with `ssh {host.address}` and compare it, "
            f"or give --accept-new-host-keys."
        )
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: no such file ({error})."
    return f"cannot be reached at {where}: {error or type(error).__name__}. Try `ssh {host.address}`."


def _known_name(host: Host) -> str:
    return f"[{host.address}]:{host.port}" if host.port and host.port != 22 else host.address
