"""The language between launcher and agents: JSON records that end in \\x1e, after a magic word.

Newlines are dropped by the receiver, because `srun --label` breaks long lines at 1,024 bytes; the magic word is there
because a shell's start-up files may print before the agent does.
"""

from __future__ import annotations

import binascii
import json

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

END = b"\x1e"
MAGIC = b"mslaunch-1" + END
LONGEST = 1 << 25
"""How long a record may be. The longest that agents send, stacks and last lines, stay below a quarter of it."""
LONGEST_ORDER = 1 << 30  # the same for what launchers send: the environment of every rank of a host
_ESCAPES = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"), (b"\x1b", b"\\u001b"))
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n\r\t\x1b"


class UnreadableRecord(dict):  # type: ignore[type-arg] # Python 3.9 cannot subclass the alias without importing typing
    """Stands for a record that cannot be read: a message without any key."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + END + b"\n"  # srun passes whole lines on


def encode_with_data(message: Mapping[str, object], data: bytes) -> bytes:
    """Encode a message with two further keys: `data`, and `is_text`, which says whether that is the text or base64.

    Logs are mostly plain text, and a few replacements make a JSON string of it. Nothing in Python is quicker, and it is
    a quarter less to encrypt.
    """
    is_text = not data.translate(None, _PLAIN)
    if is_text:
        for character, escaped in _ESCAPES:
            data = data.replace(character, escaped)
    else:
        data = binascii.b2a_base64(data, newline=False)
    head = json.dumps({**message, "is_text": is_text}, separators=(",", ":")).encode()
    return b"".join((head[:-1], b',"data":"', data, b'"}', END, b"\n"))


def decode_data(data: str, is_text: bool) -> bytes:
    """Return the bytes that `encode_with_data` was given; raise ValueError where they are none."""
    return data.encode() if is_text else binascii.a2b_base64(data)


class Decoder:
    """Turns bytes, in pieces of any size, back into messages. Whatever comes, it does not raise.

    A record that is no JSON object, or too long, becomes an Unreadable, and nothing after it is read.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._too_long = f"a record of more than {longest >> 20} MB"
        self._begun: list[bytes] = []  # pieces of the record that has not ended: joining them once costs least
        self._size = 0
        self._waiting = True
        self._broken = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        data = data.replace(b"\n", b"").replace(b"\r", b"")
        if self._waiting:
            before, magic, data = (b"".join(self._begun) + data).partition(MAGIC)
            self._begun = [] if magic else [before[-len(MAGIC) :]]
            self._waiting = not magic
        if self._waiting or self._broken:
            return []
        messages: list[dict[str, Any]] = []
        *ends, rest = data.split(END)
        for end in ends:
            record = b"".join([*self._begun, end])
            self._begun, self._size = [], 0
            if record:
                messages.append(self._read(record))
                if isinstance(messages[-1], UnreadableRecord):
                    return messages
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
        if self._size > self._longest:
            messages.append(self._refuse(self._too_long))
        return messages

    def _read(self, record: bytes) -> dict[str, Any]:
        if len(record) > self._longest:
            return self._refuse(self._too_long)
        try:
            message = json.loads(record)
        except (ValueError, RecursionError) as error:
            return self._refuse(f"a record that is not JSON ({type(error).__name__}): {record[:40]!r}")
        return message if isinstance(message, dict) else self._refuse(f"a record that is no object: {record[:40]!r}")

    def _refuse(self, why: str) -> UnreadableRecord:
        self._broken, self._begun, self._size = True, [], 0
        return UnreadableRecord(why)
