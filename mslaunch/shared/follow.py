"""Reads files as they grow, line by line."""

from __future__ import annotations

import os
import stat

CHUNK = 1 << 18
LONGEST_BAR = 1000  # characters of a progress bar; the log has the rest
RESERVED = 32  # open files that are left to everything else, however many logs are followed


class Follower:
    """One growing file, which need not exist yet; one that was cut or replaced is read from its start."""

    def __init__(self, path: str, offset: int = 0) -> None:
        self.path = path
        self._file: int | None = None
        self._offset = offset
        self._partial = b""

    def read(self, limit: int = CHUNK) -> list[str]:
        """Return the whole lines that have come since, at most about `limit` bytes of them."""
        data = self._read_bytes(limit)
        if data is None:
            return []
        if not data and self._replaced():
            self._begin_again()
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > limit:  # a line without end must not grow without bound
            lines.append(self._partial)
            self._partial = b""
        return [line.decode("utf-8", "replace").rstrip("\r") for line in lines]

    def _read_bytes(self, limit: int) -> bytes | None:
        """Return new bytes; None where the file cannot be read now: it is opened again with the next turn."""
        if not self._open() or self._file is None:
            return None
        try:
            if os.fstat(self._file).st_size < self._offset:  # somebody has cut the file
                self._offset, self._partial = 0, b""
            return os.pread(self._file, limit, self._offset)
        except OSError:  # a disk that fails, a server whose files have changed
            self.close()
            return None

    def rest(self) -> list[str]:
        """Return the last line, where it has no newline."""
        partial, self._partial = self._partial, b""
        return [partial.decode("utf-8", "replace")] if partial else []

    def behind(self) -> int:
        """Return how many bytes are waiting, in this file or in one that has taken its place."""
        waiting = self._waiting()
        if waiting == 0 and self._replaced():
            self._begin_again()
            waiting = self._waiting()
        return waiting

    def _waiting(self) -> int:
        try:
            return max(0, os.fstat(self._file).st_size - self._offset) if self._open() and self._file is not None else 0
        except OSError:
            return 0

    def _begin_again(self) -> None:
        self.close()
        self._offset, self._partial = 0, b""

    def finish(self, most: int, keep: int) -> tuple[int, list[str]]:
        """Return what was passed over and the last lines, and close the file.

        Where more than `most` bytes are waiting, only the last `keep` of them are read. The file is read to its present
        end and no further: a process that outlives its rank may go on writing for ever.
        """
        waiting = self.behind()
        passed = waiting - min(keep, most) if waiting > most else 0
        if passed:
            self._offset += passed
            self._partial = b""
        lines = self.read(waiting - passed) if waiting > passed else []
        lines += self.rest()
        self.close()
        return passed, lines

    def close(self) -> None:
        if self._file is not None:
            closing, self._file = self._file, None
            try:
                os.close(closing)
            except OSError:  # it is closed all the same
                pass

    def _replaced(self) -> bool:
        """Tell whether another file stands in this one's place: a restart puts the old log aside."""
        try:
            return self._file is not None and os.stat(self.path).st_ino != os.fstat(self._file).st_ino
        except OSError:
            return False

    def _open(self) -> bool:
        if self._file is not None:
            return True
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not hold us up
            is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        except OSError:  # not there yet, or no file can be opened now: asked again with the next turn
            return False
        if not is_file or self._file >= os.sysconf("SC_OPEN_MAX") - RESERVED:
            self.close()
            return False
        return True


class ShownFollower(Follower):
    """A follower for a screen: lines come as a terminal would show them, without what was written over."""

    def read(self, limit: int = CHUNK) -> list[str]:
        lines = [_visible(line) for line in super().read(limit)]
        start = self._partial.rstrip(b"\r").rfind(b"\r")
        if start > 0:
            self._partial = self._partial[start:]
        return lines

    def rest(self) -> list[str]:
        return [_visible(line) for line in super().rest()]

    def bar(self) -> str:
        """Return how a progress bar stands: the last line, where it has no newline yet and was written over."""
        line = self._partial.rstrip(b"\r")
        return _visible(line.decode("utf-8", "replace"))[:LONGEST_BAR] if b"\r" in line else ""


def _visible(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
