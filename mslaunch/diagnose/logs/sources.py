"""Where logs come from: the files of a folder, or of a bundle that another machine has made; opened as streams."""

from __future__ import annotations

import gzip
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from mslaunch.documents.limits import MOST_BYTES, Unreadable
from mslaunch.shared import layout

_LOG = re.compile(r"\.(?:log|txt|out|err)(?:[.-]\d{1,14})*(?:\.gz)?$")
_SYSTEM_LOG = re.compile(r"^(?:dmesg|messages|syslog|kern)(?:[.-]\w{1,14})*(?:\.gz)?$")
_NOT_OUTPUT = {
    layout.ENV_LOG,
    layout.LAUNCHER_LOG,
    layout.STACK,
    *(log.rpartition("/")[2] for log in (layout.SETUP_LOG, layout.SYNC_LOG)),
}
_NOT_LOGS = {layout.CODE, layout.SCRIPTS}
_EARLIER_FILES, _EARLIER_PLOG = (
    "|".join(re.escape(layout.earlier_name(name, 0)).replace("0", r"\d+") for name in names)
    for names in ((layout.LOG, layout.STACK), (layout.PLOG,))
)
_EARLIER = re.compile(rf"(?:^|/)(?:{_EARLIER_FILES})$|(?:^|/){_EARLIER_PLOG}/")  # of attempts before the last
_MOST_UNPACKED = 2 << 30  # of a bundle; ours hold 20 MB that unpack to some hundreds
_MOST_MEMBERS = 100_000
BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, OverflowError, RuntimeError, NotImplementedError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)
"""What reading a packed file raises that is damaged, encrypted or made to do harm."""
MEMBERS = "logs/"
"""In a bundle: the folder with the logs."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file that may be read: its path below the folder, and where it is."""

    name: str
    path: str
    size: int
    bundle: str | None = None
    """The zip file that holds it."""

    @property
    def shown(self) -> str:
        """The path that people get to see."""
        return self.path if self.bundle is None else f"{self.bundle}/{self.path}"

    def open(self) -> IO[bytes]:
        """Open the text of it, unpacked."""
        if self.bundle is not None:
            raw = _open_archive(self.bundle, os.getpid()).open(self.path)
        else:
            raw = Path(self.path).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if self.name.endswith(".gz") else raw

    def read_text(self, most: int = MOST_BYTES) -> str | None:
        """Return a small document; None where it cannot be read or is too large."""
        try:
            with self.open() as file:
                data = file.read(most + 1)
        except BROKEN:
            return None
        return None if len(data) > most else data.decode("utf-8", "replace")


def files_of(folder: Path) -> list[LogFile]:
    """Return every regular file of a folder, in order; links are not followed."""
    files = []
    for base, _, names in os.walk(folder):
        for path in (Path(base, name) for name in names):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                files.append(LogFile(str(path.relative_to(folder)), str(path), status.st_size))
    return sorted(files, key=lambda source: source.name.split("/"))


@lru_cache(1)
def _open_archive(bundle: str, pid: int) -> zipfile.ZipFile:
    """Open a bundle once in each process: its list of members may be long, and a forked process shares the offset."""
    del pid
    return zipfile.ZipFile(bundle)


def members_of(bundle: Path) -> list[LogFile]:
    """Return the logs of a bundle; one that was made to do harm, or that we never make, is Unreadable."""
    with zipfile.ZipFile(bundle) as archive:
        members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise Unreadable(f"it holds {len(members):,} files, and a bundle at most {_MOST_MEMBERS:,}")
    files = []
    for member in members:
        if member.filename.startswith(MEMBERS) and not member.is_dir():
            name = member.filename[len(MEMBERS) :]
            if {"", ".", ".."} & set(name.split("/")):
                raise Unreadable(f"it names a file outside of it, {name!r}")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Unreadable(f"{name} is packed in a way that bundles are not")
            files.append(LogFile(name, member.filename, member.file_size, str(bundle)))
    if sum(source.size for source in files) > _MOST_UNPACKED:
        raise Unreadable(f"it would unpack to more than {_MOST_UNPACKED >> 30} GB, and a bundle never does")
    return files


def logs_among(sources: list[LogFile]) -> Iterator[LogFile]:
    """Return those files that are logs of the last attempt: output, CANN's own logs, the kernel's."""
    for source in sources:
        *folders, name = source.name.split("/")
        is_log = _LOG.search(name) or _SYSTEM_LOG.search(name)
        if is_log and name not in _NOT_OUTPUT and not _NOT_LOGS & set(folders) and not _EARLIER.search(source.name):
            yield source


def is_kernel_log(name: str) -> bool:
    """Tell whether a file is the kernel's or the system's, not a rank's."""
    return _SYSTEM_LOG.search(name.rpartition("/")[2]) is not None or name.endswith("dmesg.txt")
