"""What travels to hosts that do not share our folder, and what comes back from them."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.launcher.cluster import Cluster
from mslaunch.plan.model import Plan
from mslaunch.store.layout import RunFolder
from mslaunch.transports.base import Channel
from mslaunch.words import counted

PIECE = 1 << 18
MEANWHILE = 3.0
_GOES = (
    layout.CONFIG,
    layout.CONFIG_JSON,
    layout.CHECKPOINTS,
    layout.CALL,
    layout.ZIP,
    layout.BOOT,
    layout.SCRIPTS,
    layout.CODE,
)
_CHANGES = (layout.CONFIG, layout.CONFIG_JSON, layout.SCRIPTS)  # with another attempt


class FileTransfer:
    """Sends a run's files once to each remote host, and takes its logs home."""

    def __init__(self, cluster: Cluster, folder: RunFolder, run_dir: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.run_dir = run_dir
        """Where the run lies on the hosts: as planned, even if its folder here has been moved since."""
        self.kept: dict[str, list[str]] = {}
        """Files of the job itself that stay on their hosts."""
        self.waiting: set[str] = set()
        self._turn = 0
        self._asked = 0.0
        self._packed: list[str] | None = None

    def send(self, plan: Plan) -> None:
        """Bring the run's files to the hosts that do not see them here."""
        for channel in self.cluster.channels:
            for host in channel.hosts:
                if host in self.cluster.remote:
                    for order in self._orders(plan):
                        channel.send({"to": host, **order})

    def _orders(self, plan: Plan) -> Iterator[dict[str, Any]]:
        if self._packed is None or plan.attempt:
            packed = pack(Path(plan.run_dir), _GOES if plan.attempt == 0 else _CHANGES)
            self._packed = [base64.b64encode(packed[at : at + PIECE]).decode() for at in range(0, len(packed), PIECE)]
        for index, piece in enumerate(self._packed):
            last = index == len(self._packed) - 1
            yield {"do": "files", "run_dir": plan.run_dir, "data": piece, "last": last}

    def request(self, hosts: set[str], tidy: bool) -> None:
        """Ask for the logs of hosts that are still connected."""
        self.waiting = hosts & self.cluster.remote
        self._collect(tidy)

    def request_meanwhile(self, now: float) -> None:
        """While the job runs, ask every few seconds for what is new, so that `mslaunch logs` has something to show."""
        if self.cluster.remote and now - self._asked > MEANWHILE:
            self._asked = now
            self._collect(tidy=False)

    def _collect(self, tidy: bool) -> None:
        self._turn += 1
        order = {"do": "collect", "run_dir": self.run_dir, "tidy": tidy, "turn": self._turn}
        for channel in self.cluster.channels:
            for host in channel.hosts:
                if host in self.cluster.remote and channel.is_open:
                    channel.send({"to": host, **order})

    def receive(self, event: dict[str, Any], channel: Channel) -> bool:
        """Write a piece of a file that has come; return whether the event was one."""
        if event["ev"] == "file":
            channel.send({"to": event["host"], "do": "shown", "bytes": event["bytes"]})
            with suppress(OSError, ValueError):  # a full disk here must not end the job
                self._write(event)
        elif event["ev"] == "collected":
            if event["turn"] == self._turn:
                self.waiting.discard(event["host"])
            self.kept[event["host"]] = event["kept"]
        return event["ev"] in ("file", "collected")

    def _write(self, event: dict[str, Any]) -> None:
        path = (self.folder.path / event["path"]).resolve()
        if not path.is_relative_to(self.folder.path.resolve()):
            return  # a host must not write elsewhere
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("r+b" if event["offset"] and path.exists() else "wb") as file:
            file.seek(event["offset"])
            file.write(base64.b64decode(event["data"]))

    def notes(self) -> list[str]:
        return [
            f"{host} keeps {counted(len(files), 'file')} that the job wrote: {files[0]}"
            + (" …" if len(files) > 1 else "")
            for host, files in sorted(self.kept.items())
            if files
        ]


def pack(run_dir: Path, names: tuple[str, ...]) -> bytes:
    """Pack parts of a run's folder; links stay links, to what lies under the same path there."""
    page = io.BytesIO()
    with tarfile.open(fileobj=page, mode="w:gz", compresslevel=6) as archive:
        for name in names:
            if (run_dir / name).exists():
                archive.add(run_dir / name, name)
    return page.getvalue()
