"""Files that travel over the connection: code on its way to a host, logs on their way back."""

from __future__ import annotations

import base64
import io
import os
import shutil

from mslaunch import layout
from mslaunch.agent.output import Output
from mslaunch.agent.outputs import OF_A_RANK

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from tarfile import TarFile, TarInfo
    from typing import Any

    from mslaunch import messages

CHUNK = 1 << 17
WITH_LOGS = (layout.SCHEDULER, layout.SCRIPTS, layout.MSRUN_LOGS)


class Unpacker:
    """Takes a run's files in pieces and lays them out."""

    def __init__(self) -> None:
        self._data = io.BytesIO()

    def receive(self, order: messages.FilesOrder) -> None:
        self._data.write(base64.b64decode(order["data"]))
        if order["last"]:
            import tarfile

            os.makedirs(order["run_dir"], mode=0o700, exist_ok=True)
            self._data.seek(0)
            with tarfile.open(fileobj=self._data, mode="r:gz") as archive:
                for member in archive:
                    _write_member(archive, member, os.path.join(order["run_dir"], member.name))
            self._data = io.BytesIO()


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
    """Tell whether a file is there already, as another host may have written it."""
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


class Collector:
    """Sends logs and small results back, a piece at a time, no faster than they are taken.

    `sent` remembers how much of which file has gone already, from one collection to the next.
    """

    def __init__(self, order: messages.CollectOrder, output: Output, sent: dict[str, tuple[int, int]]) -> None:
        self._run_dir: str = order["run_dir"]
        self._tidy = order["tidy"]
        self._turn = order["turn"]
        self._output = output
        self._sent = sent
        self._pieces = self._read()

    def step(self) -> bool:
        """Send what there is room for; return whether all has been sent."""
        while self._output.has_room:
            piece = next(self._pieces, None)
            if piece is None:
                kept = tidy(self._run_dir) if self._tidy else []
                self._output.event("collected", kept=kept, turn=self._turn)
                return True
            self._output.file(piece)
            self._output.flush()
        return False

    def _read(self) -> Iterator[dict[str, Any]]:
        if not os.path.isdir(self._run_dir):
            return
        for path in sorted(collected_files(self._run_dir)):
            try:
                with open(path, "rb") as file:
                    stat = os.fstat(file.fileno())
                    before, offset = self._sent.get(path, (0, 0))
                    offset = offset if before == stat.st_ino and offset <= stat.st_size else 0
                    file.seek(offset)
                    while data := file.read(CHUNK):
                        name = os.path.relpath(path, self._run_dir)
                        yield {"path": name, "offset": offset, "data": base64.b64encode(data).decode()}
                        offset += len(data)
                        self._sent[path] = (stat.st_ino, offset)
            except OSError:
                continue


def collected_files(run_dir: str) -> Iterator[str]:
    for place, folders, names in os.walk(run_dir):
        inside = os.path.relpath(place, run_dir).split(os.sep)
        if inside == ["."]:
            folders[:] = [name for name in folders if name.startswith(layout.RANK) or name in WITH_LOGS]
        elif inside[0].startswith(layout.RANK):
            folders[:] = [name for name in folders if name.startswith(layout.PLOG) or layout.PLOG in inside]
        for name in names:
            path = os.path.join(place, name)
            if inside != ["."] and not os.path.islink(path) and _is_ours(inside, name):
                yield path


def _is_ours(inside: list[str], name: str) -> bool:
    if inside[0].startswith(layout.RANK):
        return layout.PLOG in inside[-1] or layout.PLOG in inside or name.split(".", maxsplit=1)[0] in OF_A_RANK
    return name.endswith((".log", layout.LOG))


def tidy(run_dir: str) -> list[str]:
    """Take away what was brought here or has been collected; name the files of the job itself that stay."""
    kept: list[str] = []
    for name in _names(run_dir):
        path = os.path.join(run_dir, name)
        if name.startswith(layout.RANK) and os.path.isdir(path):
            kept += _tidy_rank(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif not _unlink(path):
            kept.append(path)
    try:
        os.rmdir(run_dir)
        os.rmdir(os.path.dirname(run_dir))  # only if nothing else is in it
    except OSError:
        pass
    return kept


def _tidy_rank(folder: str) -> list[str]:
    kept = []
    for name in _names(folder):
        path = os.path.join(folder, name)
        if os.path.islink(path) or (os.path.isfile(path) and name.split(".")[0] in OF_A_RANK):
            kept += [] if _unlink(path) else [path]
        elif name.startswith(layout.PLOG):
            shutil.rmtree(path, ignore_errors=True)
        else:
            kept.append(path)
    try:
        os.rmdir(folder)
    except OSError:  # something is kept, or was written just now
        pass
    return kept


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _unlink(path: str) -> bool:
    """Remove a file; tell whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
