"""How agents are started and spoken to. A transport opens channels for a set of hosts; a new one is one class."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from mslaunch.agent import wire
from mslaunch.launch import warm

PING_EVERY = 2.0


class Channel(Protocol):
    """A two-way stream to the agents of one or more hosts."""

    hosts: tuple[str, ...]
    hint: str
    """Where to look when no answer comes."""
    is_open: bool

    def fileno(self) -> int: ...

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come, or None when the stream has ended."""

    def send(self, message: dict[str, Any]) -> None: ...

    def last_words(self) -> str:
        """What was said about agents that did not start."""

    def close(self) -> None: ...


class LocalChannel:
    """An agent as a child process."""

    def __init__(self, host: str) -> None:
        self.hosts: tuple[str, ...] = (host,)
        self.hint = ""
        self.is_open = True
        self._decoder = wire.Decoder()
        self._lock = threading.Lock()
        self._process = warm.take(host)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self._write(wire.MAGIC)

    def fileno(self) -> int:
        return self._output.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        data = os.read(self._output.fileno(), 1 << 16)
        self.is_open = bool(data)
        return self._decoder.feed(data) if data else None

    def send(self, message: dict[str, Any]) -> None:
        self._write(wire.encode(message))

    def _write(self, data: bytes) -> None:
        with self._lock:
            view = memoryview(data)
            try:
                while view and not self._input.closed:
                    view = view[self._input.write(view) or 0 :]
            except BrokenPipeError:
                pass  # its end shows on the other stream

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        with self._lock:
            self._input.close()
        self._process.wait()
        self._output.close()


class Pings:
    """Tells the agents every two seconds that the launcher lives, from a thread that no stalled terminal can stall."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PING_EVERY):
            for channel in self._channels:
                channel.send({"to": "*", "do": "ping"})
