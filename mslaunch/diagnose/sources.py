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
from pathlib import Path
from typing import IO, cast

from mslaunch import layout
from mslaunch.documents.limits import MOST_BYTES

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
_MOST_UNPACKED = 8 << 30  # of a bundle; ours hold 20 MB that unpack to some hundreds
BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, OverflowError, RuntimeError, NotImplementedError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)
"""What reading a packed file raises that is damaged, encrypted or made to do harm."""
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MEMBERS = "logs/"
"""In a bundle: the folder with the logs."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file that may be read: its path below the folder, and where it is."""

    name: str
    path: str
    size: int
    bundle: str | None = None
    """The zip file that holds it."""

    @property
    def shown(self) -> str:
        """The path that people get to see."""
        return self.path if self.bundle is None else f"{self.bundle}/{self.name}"

    def open(self) -> IO[bytes]:
        """Open the text of it, unpacked."""
        if self.bundle is not None:
            with zipfile.ZipFile(self.bundle) as archive:
                raw = archive.open(self.path)  # keeps the file open
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


def files_of(folder: Path) -> list[Source]:
    """Return every regular file of a folder, in order; links are not followed."""
    found = []
    for base, _, names in os.walk(folder):
        for path in (Path(base, name) for name in names):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append(Source(str(path.relative_to(folder)), str(path), status.st_size))
    return sorted(found, key=lambda source: source.name.split("/"))


def members_of(bundle: Path) -> list[Source]:
    """Return the logs of a bundle; what claims to unpack to more than a bundle ever does is left out."""
    found, left = [], _MOST_UNPACKED
    with zipfile.ZipFile(bundle) as archive:
        for member in archive.infolist():
            is_log = member.filename.startswith(MEMBERS) and not member.is_dir()
            if is_log and member.compress_type in _PACKED and member.file_size <= left:
                left -= member.file_size
                name = member.filename[len(MEMBERS) :]
                found.append(Source(name, member.filename, member.file_size, str(bundle)))
    return found


def logs_among(sources: list[Source]) -> Iterator[Source]:
    """Return those files that are logs of the last attempt: output, CANN's own logs, the kernel's."""
    for source in sources:
        *folders, name = source.name.split("/")
        is_log = _LOG.search(name) or _SYSTEM_LOG.search(name)
        if is_log and name not in _NOT_OUTPUT and not _NOT_LOGS & set(folders) and not _EARLIER.search(source.name):
            yield source


def is_kernel_log(name: str) -> bool:
    """Tell whether a file is the kernel's or the system's, not a rank's."""
    return _SYSTEM_LOG.search(name.rpartition("/")[2]) is not None or name.endswith("dmesg.txt")
