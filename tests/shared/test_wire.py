"""The stream between launcher and agents survives what shells and srun do to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.shared.wire import END, MAGIC, Decoder, UnreadableRecord, encode

MESSAGES = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), max_size=5)


@given(MESSAGES, st.integers(1, 40), st.text(alphabet="abc \n"))
def test_messages_survive_noise_and_broken_lines(messages: list[dict[str, Any]], size: int, noise: str) -> None:
    """Whatever a .bashrc prints first, and wherever lines are broken, the same messages arrive."""
    stream = noise.encode() + MAGIC + b"".join(encode(message) for message in messages)
    broken = b"\n".join(stream[i : i + size] for i in range(0, len(stream), size))
    decoder = Decoder()
    received = [message for i in range(0, len(broken), 7) for message in decoder.feed(broken[i : i + 7])]
    assert received == messages


def test_nothing_is_heard_before_the_magic_word() -> None:
    """Output of a shell's start-up files is not taken for messages, however much there is."""
    decoder = Decoder()
    assert decoder.feed(encode({"a": 1}) * 1000) == []
    assert decoder.feed(MAGIC + encode({"b": 2})) == [{"b": 2}]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"{nonsense", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "no object"),
        (b"null", "no object"),
        (b'"' + b"x" * 2_000_000 + b'"', "more than 1 MB"),
    ],
)
@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_a_record_that_cannot_be_read_is_the_last_message(record: bytes, why: str, size: int) -> None:
    """It raises nothing; what came before it counts, what comes after it does not."""
    stream = MAGIC + encode({"a": 1}) + record + END + encode({"b": 2})
    decoder = Decoder(1 << 20)
    messages = [message for at in range(0, len(stream), size) for message in decoder.feed(stream[at : at + size])]
    assert messages == [{"a": 1}, {}]
    assert isinstance(messages[1], UnreadableRecord)
    assert why in messages[1].why
    assert decoder.feed(encode({"c": 3})) == []


def test_a_record_without_end_takes_no_more_memory_than_the_longest_that_is_allowed() -> None:
    """Once it is refused, nothing of the stream is kept."""
    decoder = Decoder(1 << 20)
    decoder.feed(MAGIC)
    refused = [message for _ in range(100) for message in decoder.feed(b"x" * (1 << 16))]
    assert [message.why for message in refused if isinstance(message, UnreadableRecord)] == [
        "a record of more than 1 MB"
    ]
    assert decoder._begun == []
