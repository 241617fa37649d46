"""mslaunch.zip: agent, worker and runtime in one file for any Python from 3.9 on; rank.py starts a rank from it."""

from __future__ import annotations

import importlib.util
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import mslaunch

_ROOMS = ("agent", "worker", "runtime")
_MAIN = "from mslaunch.worker.main import main\n\nmain()\n"
BOOT = '''"""Starts a rank from mslaunch.zip. A file of its own: running the zip itself takes a third more CPU time."""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
sys.path.insert(0, __file__[: -len("rank.py")] + "mslaunch.zip")

from mslaunch.worker.main import main

main()
'''
_UNCHECKED = (0b01).to_bytes(4, "little")  # PEP 552: bytecode that is taken as it is


def write_bundle(path: Path) -> None:
    """Write the zip: sources for any Python, and bytecode that spares this version compiling them in every rank."""
    root = Path(mslaunch.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as bundle:
        _add(bundle, "__main__", _MAIN.encode(), compile(_MAIN, "mslaunch.zip/__main__.py", "exec"))
        for source in _sources(root):
            name = "mslaunch/" + source.relative_to(root).with_suffix("").as_posix()
            loader = SourceFileLoader(name.replace("/", "."), str(source))
            _add(bundle, name, source.read_bytes(), loader.get_code(loader.name))
    path.chmod(0o600)


def _sources(root: Path) -> Iterator[Path]:
    yield root / "__init__.py"
    for room in _ROOMS:
        yield from sorted((root / room).glob("*.py"))


def _add(bundle: zipfile.ZipFile, name: str, source: bytes, code: Any) -> None:
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED + bytes(8)
    bundle.writestr(zipfile.ZipInfo(f"{name}.pyc"), header + marshal.dumps(code))
    bundle.writestr(zipfile.ZipInfo(f"{name}.py"), source)
