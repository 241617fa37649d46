"""The stream between launcher and agents survives what shells and srun do to it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mslaunch.agent.wire import MAGIC, Decoder, encode

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
