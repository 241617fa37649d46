"""A real agent, driven through its pipes by a test instead of a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mslaunch.shared import wire
from mslaunch.transports.prestart import AGENT
from tests.conftest import ROOT

PING = {"do": "ping"}


class DrivenAgent:
    """An agent of host "h": orders go in, events come out when the test asks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", AGENT, str(ROOT), "h"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._decoder = wire.Decoder()
        self._events: list[dict[str, Any]] = []
        assert self.process.stdin is not None
        self.process.stdin.write(wire.MAGIC)

    def send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.encode({"to": "h", **order}))

    def run(self, *commands: str, **changes: Any) -> None:
        """Start a rank for every shell command; the output of all of them is followed."""
        processes = [
            {
                "role": "worker",
                "rank": rank,
                "device_id": rank,
                "argv": ["/bin/sh", "-c", command],
                "env": {"MSLAUNCH_RUN_DIR": str(self.folder)},
                "cwd": str(self.folder),
                "start": "now",
                "log": str(self.folder / f"rank_{rank}" / "log.txt"),
            }
            for rank, command in enumerate(commands)
        ]
        order: dict[str, Any] = {"run_dir": str(self.folder), "attempt": 0, "env": {}, "unset": [], "secrets": {}}
        order |= {
            "launcher_lost_after": 600.0,
            "grace": 600.0,
            "answers": True,
            "metrics": None,
            "device_files": None,
            "reports_launchers": False,
            "workdir": "",
            "setup": None,
            "sync": None,
            "stdin": None,
            "tail": list(range(len(commands))),
        }
        self.send({"do": "run", **order, "processes": processes, **changes})

    def next(self) -> dict[str, Any]:
        """Wait for the next event."""
        assert self.process.stdout is not None
        while not self._events:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the agent has ended"
            self._events = self._decoder.feed(data)
        return self._events.pop(0)

    def until(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """Take events up to one of this name with these values; return all of them."""
        taken = []
        while True:
            taken.append(self.next())
            if taken[-1]["ev"] == name and values.items() <= taken[-1].items():
                return taken


@contextmanager
def driven_agent(folder: Path) -> Iterator[DrivenAgent]:
    """Start an agent; in the end its input closes, and it ends with everything that it has started."""
    agent = DrivenAgent(folder)
    try:
        yield agent
    finally:
        agent.process.communicate(timeout=60)
