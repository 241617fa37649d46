"""Commands that need no process of their own kind: run in a copy of this one, which has the modules loaded."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
from typing import NoReturn

from mslaunch.cli import main
from tests.conftest import MSLAUNCH, ROOT, TIMEOUT, Bench

LOADED = (
    *("cli", "cli/console", "cli/parsing", "launcher", "launcher/attempt", "plan", "run", "settings"),
    *("checkpoint/formats", "checkpoint/moving", "checkpoint/sharding", "weights", "diagnose", "diagnose/patterns"),
)
"""The packages that are imported once, before the first fork."""

for package in LOADED:
    for module in pkgutil.iter_modules([str(ROOT / "mslaunch" / package)], f"mslaunch.{package.replace('/', '.')}."):
        importlib.import_module(module.name)


def run(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, as `Bench.mslaunch` does, without the time that an interpreter takes to start."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            _become(bench, args, out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(args, os.waitstatus_to_exitcode(status), out.read(), err.read())


def _become(bench: Bench, args: tuple[str, ...], out: int, err: int) -> NoReturn:
    """Be the command from now on."""
    try:
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.clear()
        os.environ.update(bench.env)
        os.chdir(bench.folder)
        sys.argv = [MSLAUNCH, *args]
        main(list(args))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # main() does not return
