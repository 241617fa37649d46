"""Nodes for jobs that are joined: network namespaces behind one switch, each with a host name of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beds.netns_bed import processes_in
from tests.conftest import Bench

PORT = "29400"
SECRET = "correct-horse-battery-staple-0123456789"


@dataclass(frozen=True)
class Nodes:
    """Namespaces that reach each other: node n<i> has the address 10.213.9.<i + 1>."""

    names: tuple[str, ...]

    @property
    def master(self) -> str:
        return f"10.213.9.1:{PORT}"

    def start(self, bench: Bench, number: int, *args: str, **env: str) -> Node:
        """Start mslaunch on a node."""
        return self._start(bench, number, args, env)

    def start_apart(self, bench: Bench, number: int, private: Path, *args: str, **env: str) -> Node:
        """Start mslaunch on a node on which a folder is its own, and empty."""
        return self._start(bench, number, args, env, f"mount -t tmpfs none {shlex.quote(str(private))}; ")

    def start_with_names(self, bench: Bench, number: int, names: Path, *args: str, **env: str) -> Node:
        """Start mslaunch on a node that knows the names in a file of its own."""
        return self._start(bench, number, args, env, f"mount --bind {shlex.quote(str(names))} /etc/hosts; ")

    def _start(self, bench: Bench, number: int, args: tuple[str, ...], env: dict[str, str], own: str = "") -> Node:
        script = f'hostname n{number}; {own}exec "$@"'
        enter = ["ip", "netns", "exec", self.names[number], "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]
        return Node(bench, [*enter, bench.program, *args], f"n{number}", env)

    def processes(self) -> list[str]:
        return processes_in(*self.names)


class Node:
    """One command on one node; what it prints goes to a file."""

    def __init__(self, bench: Bench, argv: list[str], name: str, env: dict[str, str]) -> None:
        self.path = bench.folder.parent / f"{name}-{len(bench.started)}.txt"
        with self.path.open("w") as file:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                argv,
                cwd=bench.folder,
                env={**bench.env, **env},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        bench.started.append(self.process)

    @property
    def text(self) -> str:
        return self.path.read_text()

    def wait(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)


def start_here(bench: Bench, *args: str, **env: str) -> Node:
    """Start mslaunch as a node on this machine, for jobs on the loopback."""
    return Node(bench, [bench.program, *args], "here", env)


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """Namespaces with a switch between them; skip where they cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not shutil.which("ip"):
        pytest.skip("ip is not installed (Debian: iproute2)")
    switch = f"mslsw{os.getpid()}"
    names = tuple(f"mslj{os.getpid()}n{number}" for number in range(count))
    commands = [f"ip netns add {switch}", f"ip -n {switch} link add bridge type bridge"]
    commands += [f"ip -n {switch} link set bridge up"]
    for number, name in enumerate(names):
        commands += [f"ip netns add {name}", f"ip -n {name} link set lo up"]
        commands += [f"ip link add cable netns {name} type veth peer name port{number} netns {switch}"]
        commands += [f"ip -n {switch} link set port{number} master bridge up"]
        commands += [f"ip -n {name} address add 10.213.9.{number + 1}/24 dev cable"]
        commands += [f"ip -n {name} link set cable up"]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        yield Nodes(names)
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
