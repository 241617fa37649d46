"""mslaunch.zip: agent, worker and runtime for any Python from 3.9 on; mslaunch_rank.py starts a rank from it."""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

import mslaunch
from mslaunch.shared import layout, wire

_PACKAGES = ("shared", "agent", "worker", "runtime")
BOOT = f'''"""Starts a rank from {layout.ZIP}. A file of its own: running the zip itself takes a third more CPU time."""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
sys.path.insert(0, __file__[: -len("{layout.BOOT}")] + "{layout.ZIP}")

from mslaunch.worker.rank_main import main

main()
'''
AGENT_BOOT = (
    "import gc,os,sys;gc.disable();i=sys.stdin.buffer.raw;n=int(i.readline()or 0)or sys.exit()\n"
    "f=os.memfd_create('mslaunch')\n"
    "while n:\n d=i.read(min(n,65536)) or sys.exit();os.write(f,d);n-=len(d)\n"
    "sys.path.append('/proc/self/fd/%d'%f);from mslaunch.agent.main import remote_main\n"
    "remote_main(os.path.expandvars(sys.argv[1]))"
)
"""Reads the zip from the stream into memory and starts the agent from it: nothing is installed, no file is left.

Its argument is the host's name, or a variable on the host that holds it."""
_UNCHECKED = (0b01).to_bytes(4, "little")  # PEP 552: bytecode that is taken as it is


def write_bundle(path: Path) -> None:
    """Write the zip."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(bundle_bytes())


def bundle_bytes() -> bytes:
    """Return the zip. It is made once and kept beside Python's own bytecode, where that can be written."""
    root = Path(mslaunch.__file__).parent
    stats = [source.stat() for source in _sources(root)]
    fingerprint = hash(tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)) & (1 << 64) - 1
    cached = root / "__pycache__" / f"bundle-{fingerprint:016x}.{sys.implementation.cache_tag}.zip"
    try:
        return cached.read_bytes()
    except OSError:
        content = _make(root)
    with suppress(OSError):
        for old in cached.parent.glob(f"bundle-*.{sys.implementation.cache_tag}.zip"):
            old.unlink()
        beside = cached.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        beside.write_bytes(content)
        beside.replace(cached)
    return content


def agent_stream() -> bytes:
    """What an agent that starts with AGENT_BOOT is sent first."""
    zipped = bundle_bytes()
    return f"{len(zipped)}\n".encode() + zipped + wire.MAGIC


def _make(root: Path) -> bytes:
    """Make the zip: sources for any Python, and bytecode that spares this version compiling them in every rank."""
    import zipfile

    page = io.BytesIO()
    with zipfile.ZipFile(page, "w", zipfile.ZIP_STORED) as bundle:
        for source in _sources(root):
            name = "mslaunch/" + source.relative_to(root).with_suffix("").as_posix()
            loader = SourceFileLoader(name.replace("/", "."), str(source))
            header = importlib.util.MAGIC_NUMBER + _UNCHECKED + bytes(8)
            code = header + marshal.dumps(loader.get_code(loader.name))
            bundle.writestr(zipfile.ZipInfo(f"{name}.pyc"), code)
            bundle.writestr(zipfile.ZipInfo(f"{name}.py"), source.read_bytes())
    return page.getvalue()


def _sources(root: Path) -> Iterator[Path]:
    yield root / "__init__.py"
    for package in _PACKAGES:
        yield from sorted((root / package).rglob("*.py"))
