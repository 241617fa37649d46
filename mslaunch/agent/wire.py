"""The language between launcher and agents: JSON records that end in \\x1e, after a magic word.

Newlines are dropped by the receiver, because `srun --label` breaks long lines at 1,024 bytes; the magic word is there
because a shell's start-up files may print before the agent does.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

END = b"\x1e"
MAGIC = b"mslaunch-1" + END


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + END + b"\n"  # srun passes whole lines on


class Decoder:
    """Turns bytes, in pieces of any size, back into messages."""

    def __init__(self) -> None:
        self._rest = b""
        self._waiting = True

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self._rest += data.replace(b"\n", b"").replace(b"\r", b"")
        if self._waiting:
            before, found, after = self._rest.partition(MAGIC)
            if not found:
                self._rest = before[-len(MAGIC) :]
                return []
            self._rest, self._waiting = after, False
        *records, self._rest = self._rest.split(END)
        return [json.loads(record) for record in records if record]
