"""A pod's log that is followed by a thread, so that whoever reads it can look at the pods meanwhile.

A kubelet that rotates a log may send nothing for a while, and then go on where it was. A new stream would begin with
the newest file, and what the old one had not sent yet would be lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from mslaunch.errors import MslaunchError
from mslaunch.transports.kubernetes.cluster import Cluster

_SILENCE = 90.0
"""Seconds after which a stream that says nothing is taken for broken."""
_WAITING_LINES = 10_000


class LogStream:
    """The lines of one pod's log, from now or some seconds ago on."""

    def __init__(self, cluster: Cluster, pod: str, since: float | None) -> None:
        self.pod = pod
        self.has_ended = False
        self._cluster = cluster
        self._since = since
        self._lines: queue.Queue[bytes | MslaunchError | None] = queue.Queue(_WAITING_LINES)
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, name="mslaunch log", daemon=True).start()

    def read(self, quiet: float) -> Iterator[bytes]:
        """Yield lines until none comes for so many seconds, or the stream ends; raise what it broke off with."""
        while not self.has_ended:
            try:
                line = self._lines.get(timeout=quiet)
            except queue.Empty:
                return
            if isinstance(line, bytes):
                yield line
                continue
            self.has_ended = True
            if line is not None:
                raise line

    def close(self) -> None:
        """Read no more of it."""
        self.has_ended = True
        self._is_closed.set()

    def _run(self) -> None:
        end: MslaunchError | None = None
        try:
            for line in self._cluster.log(self.pod, _SILENCE, self._since):
                if not self._put(line):
                    return
        except MslaunchError as error:
            end = error
        self._put(end)

    def _put(self, item: bytes | MslaunchError | None) -> bool:
        """Hand something over; say whether somebody still reads."""
        while not self._is_closed.is_set():
            try:
                self._lines.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False
