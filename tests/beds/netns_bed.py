"""Plug-ins in environments of their own, and network namespaces that reach each other, to run jobs in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ADDRESSES = ("10.213.8.1", "10.213.8.2")
PROGRAM = """#!{python}
from mslaunch.cli import main
main()
"""


def install(folder: Path, *packages: Path) -> Path:
    """Make an environment that has what the running one has, and these packages; return its mslaunch."""
    venv.create(folder)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(folder)}))
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    shared = [path for path in sys.path if Path(path).is_dir() and not _is_inside(path, own)]
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in shared))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), *map(str, packages)], check=True, capture_output=True)
    program = folder / "bin" / "mslaunch"
    program.write_text(PROGRAM.format(python=python))
    program.chmod(0o755)
    return program


def _is_inside(path: str, standard: set[str]) -> bool:
    return path in standard or path.endswith("lib-dynload")


@contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them; skip where they cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not shutil.which("ip"):
        pytest.skip("ip is not installed (Debian: iproute2)")
    one, two = (f"mslns{os.getpid()}{letter}" for letter in "ab")
    commands = [f"ip netns add {one}", f"ip netns add {two}"]
    commands += [f"ip link add cable netns {one} type veth peer name cable netns {two}"]
    for name, address in zip((one, two), ADDRESSES, strict=True):
        commands += [f"ip -n {name} address add {address}/24 dev cable"]
        commands += [f"ip -n {name} link set cable up", f"ip -n {name} link set lo up"]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        yield one, two
    finally:
        for name in (one, two):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def unplugged(name: str) -> Iterator[None]:
    """The cable of a namespace set down for a while."""
    subprocess.run(["ip", "-n", name, "link", "set", "cable", "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "-n", name, "link", "set", "cable", "up"], check=True)


def processes_in(*names: str) -> list[str]:
    """Return the processes that are in a namespace, as /proc tells, whatever they are."""
    found = []
    for name in names:
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
        found += done.stdout.split()
    return found
