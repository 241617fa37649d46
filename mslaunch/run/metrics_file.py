"""metrics.jsonl: written by the launcher beside the job, bounded however long it runs, read while it grows."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from mslaunch.documents.limits import open_file
from mslaunch.metrics.rows import Number, Row, Source, merge, read_row, write_row
from mslaunch.metrics.series import SIGNS_OF_STEPS, Series, SeriesTable, last_step_came
from mslaunch.shared.follow import Follower

FEWEST = 2  # rows that every source keeps


def thin(rows: Callable[[], Iterable[Row]], most: int) -> Iterator[Row]:
    """Yield about `most` rows at most, in order; they are read twice, and few are held at a time.

    Every source gets the same number of rows, spread evenly over its reports. The newest row of each stays as it is: a
    thinned file ends as the whole one did.
    """
    reports: Counter[Source] = Counter()
    number: Counter[Source] = Counter()
    for row in rows():
        reports[row.source] += row.count
        number[row.source] += 1
    fair = max(FEWEST, most // max(1, len(reports))) - 1
    size = {source: -(-count // fair) for source, count in reports.items()}
    waiting: dict[Source, list[Row]] = {}
    seen: Counter[Source] = Counter()
    for row in rows():
        source = row.source
        seen[source] += 1
        is_newest = seen[source] == number[source]
        group = waiting.setdefault(source, [])
        if not is_newest:
            group.append(row)
        if group and (is_newest or sum(member.count for member in group) >= size[source]):
            yield merge(group)
            group.clear()
        if is_newest:
            yield row


LARGEST = 12 << 20  # when the file is this long, it is thinned
THINNED = 6 << 20  # to about this length
FAR_TOO_LONG = 1.5  # times that length, rows wait for it to be thinned
ROW_BYTES = 160  # of a thinned row, roughly
PIECE = 1 << 20
READ = 1 << 16  # bytes of a file's end that are read first
MOST_READ = 32 << 20  # the file is thinned before it is as long


class MetricsWriter:
    """Appends rows. A disk that is full loses rows, never the job; thinning is done beside it, in a thread."""

    def __init__(self, path: Path, largest: int = LARGEST, thinned: int = THINNED) -> None:
        self._path = path
        self._largest, self._thinned = largest, thinned
        self._beside = path.with_name(f"{path.name}.new")
        self._file = -1
        self._size = 0
        self._thinning: _Thinning | None = None
        self._most = max(1, thinned // ROW_BYTES)
        """Rows that fit, as far as earlier thinnings have shown."""
        self._open()

    def _open(self) -> None:
        with suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._file).st_size

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows; none of them where there is no room, since half a line would spoil the next one."""
        data = "".join(map(write_row, rows)).encode()
        is_far_too_long = self._size > FAR_TOO_LONG * self._largest
        if self._thinning is not None and (is_far_too_long or not self._thinning.is_alive()):
            self._thinning.join()
            self._take_thinned(self._thinning)
        if not data or self._size > FAR_TOO_LONG * self._largest:  # it could not be thinned: no room beside it
            return
        if self._file < 0:
            self._open()
        with suppress(OSError):
            written = os.write(self._file, data) if self._file >= 0 else 0
            if 0 < written < len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            else:
                self._size += written
        if self._size > self._largest and self._thinning is None:
            self._thinning = _Thinning(self._path, self._beside, self._size, self._thinned, self._most)

    def _take_thinned(self, thinning: _Thinning) -> None:
        """Put the thinned file in the place of the long one, with what has come meanwhile."""
        self._thinning, self._most = None, thinning.most
        try:
            if not thinning.is_whole:
                raise OSError
            with self._path.open("rb") as read, self._beside.open("ab") as written:
                read.seek(thinning.end)
                shutil.copyfileobj(read, written)
            self._beside.replace(self._path)
        except OSError:
            with suppress(OSError):
                self._beside.unlink()
            return
        self.close()
        self._open()

    def close(self) -> None:
        """Close the file; a thinning that is under way is waited for."""
        if self._thinning is not None:
            self._thinning.join()
            self._take_thinned(self._thinning)
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1


class _Thinning(threading.Thread):
    """Writes a thinned copy of the first `end` bytes of a file."""

    def __init__(self, path: Path, beside: Path, end: int, size: int, most: int) -> None:
        super().__init__(name="thinning", daemon=True)
        self._path, self._beside, self.end, self._size = path, beside, end, size
        self.most = most
        self.is_whole = False
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while (size := self._write()) > self._size and self.most > 1:
                self.most = max(1, self.most * self._size // (size + size // 8))
            self.is_whole = True

    def _write(self) -> int:
        with self._beside.open("w", encoding="utf-8") as file:
            self._beside.chmod(0o600)
            for row in thin(lambda: read_rows(self._path, self.end), self.most):
                file.write(write_row(row))
        return self._beside.stat().st_size


def read_rows(path: Path, end: int | None = None, start: int = 0) -> Iterator[Row]:
    """Yield the rows of a file from `start` up to `end`; what is no row is left out."""
    try:
        with open_file(path) as file:
            file.seek(start)
            for line in file:
                start += len(line)
                if end is not None and start > end:
                    return
                if (row := read_row(line)) is not None:
                    yield row
    except OSError:
        return


class Metrics:
    """The numbers of a run, as far as they are known; `update` reads on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._follower = Follower(str(path))
        self.table = SeriesTable()
        self.update()

    def update(self) -> bool:
        """Read what is new; return whether there was something. A file that was thinned is read from its start."""
        try:
            status = self._path.stat()
        except OSError:
            return False
        file = (status.st_dev, status.st_ino)
        if file != self._file:
            self._follower.close()
            self._follower = Follower(str(self._path))
            self.table.clear()
            self._file = file
        new = False
        while lines := self._follower.read(PIECE):
            self.table.add(row for line in lines if (row := read_row(line)) is not None)
            new = True
        return new

    def names(self) -> list[str]:
        """Return what the ranks have told numbers of: loss, step_time, memory and so on."""
        return self.table.names()

    def last(self, rank: int = 0) -> dict[str, Number]:
        """Return the last numbers of a rank by name, of its last attempt."""
        return self.table.last(self._newest(rank))

    def all_last(self) -> dict[int, dict[str, Number]]:
        """Return the last numbers of every rank, of its last attempt."""
        return {source.rank: self.table.last(source) for source in self._of_ranks() if source.rank is not None}

    def steps_came(self) -> dict[int, float]:
        """Return when the last step of every rank came, in its last attempt."""
        times: dict[int, float] = {}
        for source in self._of_ranks():
            when = last_step_came(self.table.of(source))
            if source.rank is not None and when is not None:
                times[source.rank] = when
        return times

    def _of_ranks(self) -> list[Source]:
        return sorted(source for source in self.table.sources if source.rank is not None)

    def series(self, name: str, rank: int = 0, attempt: int | None = None) -> Series:
        """Return a number of a rank over time, in one attempt or the last one; an empty series where it told none."""
        source = self._newest(rank) if attempt is None else Source(attempt, rank)
        return self.table.of(source).get(name) or Series()

    def _newest(self, rank: int) -> Source:
        return Source(self.table.attempts.get(rank, 0), rank)

    def close(self) -> None:
        self._follower.close()


def last_values(path: Path, sources: int) -> dict[Source, dict[str, Number]]:
    """Return the last numbers of every source, without reading a long file where its end has them all."""
    table = last_table(path, sources)
    return {source: table.last(source) for source in table.sources}


def last_table(path: Path, sources: int, with_steps: bool = False) -> SeriesTable:
    """Return the numbers at the end of a file where that tells of all sources, `with_steps` of steps also."""
    try:
        size = path.stat().st_size
    except OSError:
        return SeriesTable()
    piece = READ
    while True:
        start = max(0, size - piece)
        table = SeriesTable()
        table.add(read_rows(path, start=start))
        ranks = sum(1 for source in table.sources if source.rank is not None)
        if (
            not start
            or piece > MOST_READ
            or (ranks >= sources and (not with_steps or not SIGNS_OF_STEPS.isdisjoint(table.names())))
        ):
            return table
        piece *= 4


MOST_ROWS = 20  # that are tried, should some of them be no rows


def last_loss(path: Path) -> Number | None:
    """Return the last loss near the end of the file: of rank 0, else of the last rank that tells one."""
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - READ))
            lines = [line for line in file.read(READ).split(b"\n") if b'"loss":' in line]
    except OSError:
        return None
    of_first = [line for line in lines if b'"rank":0,' in line]
    for line in reversed((of_first or lines)[-MOST_ROWS:]):
        if (row := read_row(line)) and (loss := row.last("loss")) is not None:
            return loss
    return None
