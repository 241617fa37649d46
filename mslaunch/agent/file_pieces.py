"""Files that travel in pieces over the connection: code on its way to a host, logs on their way back."""

from __future__ import annotations

import base64
import io
import os
import shutil
import stat
import time
from collections import deque

from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.shared import layout, work_folder

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from tarfile import TarFile, TarInfo

    from mslaunch.shared import messages

MOST_NAMED = 100  # so many of the files that stay are named, however many a job has written


class RunFiles:
    """The files of a run: those that come before it starts, and those that go back."""

    def __init__(self, output: LauncherStream) -> None:
        self._output = output
        self._archive = io.BytesIO()
        self.collector: Collector | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        """By path, the file's inode and how much of it has gone already, over all collections."""

    def receive(self, order: messages.FilesOrder) -> None:
        try:
            self._archive.write(base64.b64decode(order["data"]))
            if order["last"]:
                archive, self._archive = self._archive, io.BytesIO()
                unpack(archive, order["run_dir"])
        except (OSError, EOFError, ValueError) as error:
            self._output.event("files-failed", why=str(error))

    def collect(self, order: messages.CollectOrder) -> None:
        """Begin a collection; one that is on its way is replaced only by the last one, which has the host to itself."""
        if self.collector is None or order["share"] == 1.0:
            self.collector = Collector(order, self._output, self._sent)

    def send_piece(self) -> bool:
        """Send a piece of the files that are collected; return whether there may be another one at once."""
        if self.collector is None:
            return False
        if self.collector.step():
            self.collector = None
            return False
        return self.collector.is_ready


def unpack(packed: io.BytesIO, run_dir: str) -> None:
    """Lay out a run's files."""
    import tarfile

    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    packed.seek(0)
    with tarfile.open(fileobj=packed, mode="r:gz") as archive:
        for member in archive:
            _write_member(archive, member, os.path.join(run_dir, member.name))


def _write_member(archive: TarFile, member: TarInfo, path: str) -> None:
    """Write one member so that nobody sees it half written: other hosts may share the folder, and import from it."""
    if member.isdir():
        os.makedirs(path, mode=member.mode, exist_ok=True)
        return
    beside = f"{path}.{os.urandom(6).hex()}"
    if member.issym():
        if os.path.islink(path) and os.readlink(path) == member.linkname:
            return
        os.symlink(member.linkname, beside)
    else:
        opened = archive.extractfile(member)
        data = opened.read() if opened is not None else b""
        if _holds(path, data):
            return
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o777), "wb") as file:
            file.write(data)
    os.replace(beside, path)


def _holds(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


class Collector:
    """Sends logs and small results back, a piece at a time, no faster than they are written over there.

    Files take turns: one that grows fast does not hold up the others, and each is read to the end that it had at the
    beginning.
    """

    def __init__(self, order: messages.CollectOrder, output: LauncherStream, sent: dict[str, tuple[int, int]]) -> None:
        self._order = order
        self._idle_for = 1.0 / order["share"] - 1.0
        """A job that runs has the host to itself for so many times as long as a piece has taken."""
        self._output = output
        self._sent = sent
        self._files = deque((path, _size(path)) for path in sorted(collected_files(order["run_dir"])))
        self._next = 0.0

    @property
    def is_ready(self) -> bool:
        return bool(self._files) and self._output.has_room_for_a_piece and time.monotonic() >= self._next

    def step(self) -> bool:
        """Send one piece, where there is room for it; return whether all has been sent."""
        if self._files and not self.is_ready:
            return False
        began = time.monotonic()
        has_sent = False
        while self._files and not has_sent:
            has_sent = self._send_piece()
        self._next = began + (time.monotonic() - began) * (1.0 + self._idle_for)
        if has_sent or not self._output.window.is_empty:
            return False  # nothing is removed here before it is written over there
        stay: list[str] = []
        try:
            if self._order["tidy"]:
                stay = tidy(self._order["run_dir"])
        except OSError:
            pass  # a disk that fails: what is there stays
        self._output.event("collected", kept=stay[:MOST_NAMED], count=len(stay), turn=self._order["turn"])
        return True

    def _send_piece(self) -> bool:
        """Send a piece of the next file; return whether there was one."""
        path, end = self._files.popleft()
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            status = os.fstat(file)
            inode, offset = self._sent.get(path, (0, 0))
            if inode != status.st_ino or offset > status.st_size:
                offset = 0
            data = os.pread(file, min(self._output.window.piece, max(0, end - offset)), offset)
        except OSError:
            return False
        finally:
            os.close(file)
        if not data:
            return False
        self._sent[path] = (status.st_ino, offset + len(data))
        self._output.file(os.path.relpath(path, self._order["run_dir"]), offset, data)
        if offset + len(data) < end:
            self._files.append((path, end))
        return True


def _size(path: str) -> int:
    """Return how long a regular file is; nothing else is collected."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def collected_files(run_dir: str) -> Iterator[str]:
    for place, folders, names in os.walk(run_dir):
        inside = () if place == run_dir else tuple(os.path.relpath(place, run_dir).split(os.sep))
        folders[:] = [name for name in folders if layout.is_collected((*inside, name, layout.LOG))]
        for name in names:
            if layout.is_collected((*inside, name)):
                yield os.path.join(place, name)


def tidy(run_dir: str) -> list[str]:
    """Remove what was brought here or has been collected; return the files of the job itself that stay."""
    stay = _tidy_code(run_dir)
    for name in _names(run_dir):
        path = os.path.join(run_dir, name)
        if name.startswith(layout.RANK) and os.path.isdir(path) and not os.path.islink(path):
            stay += _tidy_rank(path)
        elif not (name == layout.CODE and stay):
            _remove(path)
    _remove_if_empty(run_dir)
    _remove_if_empty(os.path.dirname(run_dir))
    return stay


def _tidy_code(run_dir: str) -> list[str]:
    """Remove what was brought into code/; return what the ranks wrote there."""
    code = os.path.join(run_dir, layout.CODE)
    written = {os.path.join(run_dir, name) for name, _ in work_folder.code_files(run_dir)}
    if not written:
        return []
    for place, folders, names in os.walk(code, topdown=False):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            if os.path.islink(path) or (name in names and path not in written):
                _remove(path)
        _remove_if_empty(place)
    return [os.path.join(code, name) for name in _names(code)]


def _tidy_rank(folder: str) -> list[str]:
    """Remove our files of a rank; return what it wrote, and what of that lies outside of its working folder."""
    work = os.path.join(folder, layout.WORK)
    for name in _names(folder):
        if layout.original_name(name) in (*layout.COLLECTED_OF_A_RANK, layout.PLOG):
            _remove(os.path.join(folder, name))
    _remove_if_empty(work)
    _remove_if_empty(folder)
    written = [os.path.join(work, name) for name in _names(work)]
    return written + [os.path.join(folder, name) for name in _names(folder) if name != layout.WORK]


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        os.unlink(path)
    except OSError:
        pass  # what cannot be removed stays: no reason for an agent to end


def _remove_if_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
