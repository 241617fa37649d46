"""The pipe from ranks to their agent is open to everything that a rank starts: nonsense in it does no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent.rank_messages import LONGEST, RankMessages, read_exit_file
from tests.beds.driven_agent import PING, driven_agent

RIGHT = {"what": "error", "rank": 0, "time": 1.0, "message": "ValueError: x"}
WRONG: list[Any] = [
    7,
    None,
    [RIGHT],
    {},
    {**RIGHT, "what": "explode"},
    {**RIGHT, "what": ["error"]},
    {**RIGHT, "rank": None},
    {**RIGHT, "rank": "0"},
    {**RIGHT, "rank": True},
    {**RIGHT, "rank": -1},
    {**RIGHT, "rank": 1 << 70},
    {**RIGHT, "time": None},
    {**RIGHT, "time": float("nan")},
    {**RIGHT, "time": 1e300},
    {**RIGHT, "message": None},
    {**RIGHT, "message": {"deep": [1]}},
    {"what": "started", "rank": 0, "time": 1.0},
    {"what": "started", "rank": 0, "time": 1.0, "child": -1},
    {"what": "started", "rank": 0, "time": 1.0, "child": 1},
    {"what": "ended", "rank": 0, "time": 1.0, "code": "0", "signal": None},
    {"what": "ended", "rank": 0, "time": 1.0, "code": 1 << 40, "signal": None},
]


@pytest.mark.parametrize("message", WRONG, ids=range(len(WRONG)))
def test_a_wrong_message_is_left_out_and_the_next_one_counts(message: Any) -> None:
    lines = json.dumps(message).encode() + b"\n" + json.dumps(RIGHT).encode() + b"\n"
    assert RankMessages().feed(lines) == [RIGHT]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 100_000, b"{", b"x" * 10 * LONGEST])
def test_a_line_that_is_no_json_is_left_out(line: bytes) -> None:
    messages = RankMessages()
    for at in range(0, len(line), 4096):
        assert messages.feed(line[at : at + 4096]) == []
    assert messages.feed(b"\n" + json.dumps(RIGHT).encode() + b"\n") == [RIGHT]


def test_a_line_without_end_takes_no_memory() -> None:
    messages = RankMessages()
    for _ in range(100):
        messages.feed(b"x" * 4096)
        assert len(messages._partial) <= LONGEST


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "{}", "[" * 10_000, '{"code": "0", "signal": null, "time": 1}', '{"code": 1e9}']
)
def test_an_exit_file_that_is_wrong_counts_as_none(tmp_path: Path, text: str) -> None:
    """A script may write one of its own."""
    (tmp_path / "exit.json").write_text(text)
    assert read_exit_file(str(tmp_path / "log.txt"))[0] == {"code": None, "signal": 9}


def test_a_rank_that_writes_nonsense_to_its_agent_ends_as_it_ends(tmp_path: Path) -> None:
    """Neither its start nor its end can be made up where the agent is its parent."""
    lies: list[Any] = [*WRONG, {"what": "ended", "rank": 0, "time": 1.0, "code": 9, "signal": None, "crashed": None}]
    (tmp_path / "lies").write_text("".join(f"{json.dumps(lie)}\n" for lie in lies))
    with driven_agent(tmp_path) as agent:
        agent.run('cat lies > "$MSLAUNCH_AGENT"; exit 3')
        events = agent.until("exited")
        agent.send(PING)
        events += agent.until("pulse")
    assert [event["ev"] for event in events if event["ev"] not in ("hello", "lines")] == ["started", "exited", "pulse"]
    assert events[-2]["code"] == 3
