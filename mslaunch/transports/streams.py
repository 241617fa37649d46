"""What transports and the launcher share for their channels: writing from a thread, pings, closing all at once."""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from mslaunch.transports.base import Channel

PING_EVERY = 2.0
FLUSH_SECONDS = 2.0
WAITING_NOTES = (10.0, 30.0, 60.0)
MOST_NAMED = 8


class Sender:
    """Writes what is to be sent from a thread of its own: a peer that does not read never holds up the launcher."""

    def __init__(self, write: Callable[[bytes], object], done: Callable[[], object] = lambda: None) -> None:
        self._write = write
        self._done = done
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, data: bytes) -> None:
        self._queue.put(data)

    def flush(self) -> None:
        """Wait until everything before has been written, or the peer takes too long."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(FLUSH_SECONDS)

    def close(self) -> None:
        """End the stream once everything has been written."""
        self._queue.put(None)

    def _run(self) -> None:
        with suppress(OSError, ValueError):  # closed: its end shows on the other stream
            while (item := self._queue.get()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    self._write(item)
        with suppress(OSError):
            self._done()


def write_fully(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def close_all(channels: Sequence[Channel]) -> None:
    """Close channels side by side, since each may wait for its host; one by one where no thread can be started."""
    threads = [threading.Thread(target=channel.close, daemon=True) for channel in channels]
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:
            thread.run()
    for thread in threads:
        if thread.ident is not None:
            thread.join()


class Waiting:
    """Reports which hosts are waited for: after 10, 30 and 60 s, and then every minute."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._next = WAITING_NOTES[0]

    def look(self, seconds: float, hosts: Collection[str]) -> None:
        """Report these hosts if they have been waited for so long."""
        if seconds < self._next or not hosts:
            return
        self._next = next((after for after in WAITING_NOTES if after > seconds), seconds + WAITING_NOTES[-1])
        first = sorted(hosts)[:MOST_NAMED]
        more = f" and {len(hosts) - len(first)} more" if len(hosts) > len(first) else ""
        self._tell(f"waiting for {', '.join(first)}{more} ({seconds:.0f} s)")


@contextmanager
def pings(channels: Sequence[Channel], limit: float = math.inf) -> Iterator[None]:
    """Tell the agents every two seconds that the launcher lives, from a thread that no stalled terminal can stall.

    Several pings go out within `limit`, the least silence that counts as a loss, however short it is.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(min(PING_EVERY, limit / 4)):
            for channel in channels:
                channel.send({"to": "*", "do": "ping"})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
