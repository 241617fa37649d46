"""What travels to hosts that do not share our folder, and what comes back from them."""

from __future__ import annotations

import base64
import io
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

from mslaunch.launcher.attempt.claims import FileClaims
from mslaunch.launcher.attempt.event_check import Rejected
from mslaunch.launcher.connect import Cluster
from mslaunch.plan.model import Plan
from mslaunch.run.paths import RunFolder
from mslaunch.shared import layout, messages
from mslaunch.shared.layout import is_collected
from mslaunch.shared.wire import decode_data
from mslaunch.text import counted
from mslaunch.transports.base import Channel

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def write_piece(folder: Path, parts: Sequence[str], offset: int, data: bytes) -> None:
    """Write a piece of a file below a folder; the first piece replaces what was there."""
    *folders, name = parts
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            place = _enter(place, part)
        file = os.open(name, _FILE, 0o600, dir_fd=place)
    finally:
        os.close(place)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileExistsError(f"{name} is no regular file")
        if offset == 0:
            os.ftruncate(file, 0)
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(file)


def _enter(place: int, part: str) -> int:
    """Open a folder in an open one, made where it is missing, and close the outer one."""
    try:
        inner = os.open(part, _FOLDER, dir_fd=place)
    except FileNotFoundError:
        os.mkdir(part, 0o700, dir_fd=place)
        inner = os.open(part, _FOLDER, dir_fd=place)
    os.close(place)
    return inner


FILE_EVENTS = ("file", "collected")
PIECE = 1 << 18
MEANWHILE = 3.0
SHARE_MEANWHILE = 0.05  # of an agent's time, while the host's ranks want it
_GOES = (
    layout.CONFIG,
    layout.CONFIG_JSON,
    layout.CHECKPOINTS,
    layout.CALL,
    layout.ZIP,
    layout.BOOT,
    layout.SCRIPTS,
    layout.CODE,
    layout.SNAPSHOT,
)
_CHANGES = (layout.CONFIG, layout.CONFIG_JSON, layout.SCRIPTS)  # with another attempt


class FileTransfer:
    """Sends a run's files once to each remote host, and collects its logs."""

    def __init__(self, cluster: Cluster, folder: RunFolder, run_dir: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.run_dir = run_dir
        """Where the run lies on the hosts: as planned, even if its folder here has been moved since."""
        self.claims = FileClaims()
        self.waiting: set[str] = set()
        """Hosts whose logs have been asked for and are not complete."""
        self._ends: dict[tuple[str, str], int] = {}
        """How far each file of a host has come: each piece begins where the one before has ended."""
        self._kept: dict[str, tuple[int, list[str]]] = {}
        self._unwritten: dict[str, str] = {}
        self._turn = 0
        self._asked = 0.0
        self._served: set[str] = set()
        """Hosts that have the files of the first attempt."""

    def use(self, cluster: Cluster, lost: set[str]) -> None:
        """Go on with other hosts; those that were lost may have come back without any file."""
        self.cluster = cluster
        self._served -= lost
        self.waiting = set()

    def send(self, plan: Plan) -> None:
        """Bring the run's files to the hosts that do not see them here."""
        self.claims.add(plan)
        packed: dict[tuple[str, ...], list[str]] = {}
        for channel in self.cluster.channels:
            for host in channel.hosts:
                if host in self.cluster.remote:
                    names = _CHANGES if host in self._served else _GOES
                    self._served.add(host)
                    if names not in packed:
                        data = pack(Path(plan.run_dir), names)
                        starts = range(0, len(data), PIECE)
                        packed[names] = [base64.b64encode(data[at : at + PIECE]).decode() for at in starts]
                    order = {"to": host, "do": "files", "run_dir": plan.run_dir}
                    *pieces, last = packed[names]
                    for piece in pieces:
                        channel.send({**order, "data": piece, "last": False})
                    channel.send({**order, "data": last, "last": True})

    def request(self, hosts: set[str], tidy: bool) -> None:
        """Ask for the logs of hosts that are still connected."""
        self.waiting = hosts & self.cluster.remote
        self._collect(tidy, 1.0)

    def request_meanwhile(self, now: float) -> None:
        """While the job runs, ask every few seconds for what is new, so that `mslaunch logs` has something to show."""
        if self.cluster.remote and now - self._asked > MEANWHILE:
            self._asked = now
            self._collect(False, SHARE_MEANWHILE)

    def _collect(self, tidy: bool, share: float) -> None:
        self._turn += 1
        order = {"do": "collect", "run_dir": self.run_dir, "turn": self._turn, "share": share}
        for channel in self.cluster.channels:
            for host in channel.hosts:
                if host in self.cluster.remote and channel.is_open:
                    # What could not be written here must not be removed there.
                    channel.send({"to": host, **order, "tidy": tidy and host not in self._unwritten})

    def receive(self, event: messages.Message, channel: Channel) -> None:
        """Take one of FILE_EVENTS: write a piece of a file, or note that all files of a host have come."""
        name, host = event["ev"], event["host"]
        if host not in self.cluster.remote:
            raise Rejected(f"sent an event ({name}) though it shares the run's folder")
        if name == "file":
            channel.send({"to": host, "do": "written", "bytes": self._write(event)})
            return
        if event["turn"] == self._turn:
            self.waiting.discard(host)
        self._kept[host] = (event["count"], event["kept"])

    def _write(self, event: messages.Message) -> int:
        """Write a piece of a file and return how long it is; a full disk here must not end the job."""
        host, path, offset = event["host"], event["path"], event["offset"]
        parts = self.claims.check(host, path)
        if offset and offset != self._ends.get((host, path)):
            raise Rejected(f"sent a piece of {path!r} at {offset}, where none was to come")
        try:
            data = decode_data(event["data"], event["is_text"])
        except ValueError:
            raise Rejected(f"sent a piece of {path!r} that cannot be decoded") from None
        self._ends[host, path] = offset + len(data)
        try:
            write_piece(self.folder.path, parts, offset, data)
        except OSError as error:
            self._unwritten[host] = f"{path} cannot be written here: {error.strerror or error}"
        return len(data)

    def notes(self) -> list[str]:
        """Say what stays on the hosts: files that the job wrote, and logs that could not be written here."""
        kept = [
            f"{host} keeps {counted(count, 'file')} that the job wrote: {files[0]}" + (" …" if count > 1 else "")
            for host, (count, files) in sorted(self._kept.items())
            if files
        ]
        return kept + [f"{host} keeps its logs: {why}" for host, why in sorted(self._unwritten.items())]


def pack(run_dir: Path, names: tuple[str, ...]) -> bytes:
    """Pack parts of a run's folder; links stay links, to what lies under the same path there."""
    page = io.BytesIO()
    with tarfile.open(fileobj=page, mode="w:gz", compresslevel=6) as archive:
        for name in names:
            if (run_dir / name).exists():
                archive.add(run_dir / name, name, filter=_unless_collected)
    return page.getvalue()


def _unless_collected(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out logs: one that came from a host is not sent to another, which would send it back as its own."""
    return None if is_collected(tuple(member.name.split("/"))) else member
