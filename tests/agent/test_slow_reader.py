"""An agent whose lines are not read, or not shown: they wait in the log, not in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mslaunch.agent.launcher_stream import ROOM, LauncherStream
from mslaunch.shared.follow import CHUNK
from mslaunch.shared.wire import Decoder
from tests.beds.driven_agent import PING, driven_agent
from tests.conftest import wait_for

TURNS = 20
LINE = "x" * 99
LINES = 50_000
WRITER = f"yes {LINE} | head -n {LINES}; touch written; sleep 600"


def shown(events: list[dict[str, Any]]) -> int:
    return sum(event["bytes"] for event in events if event["ev"] == "lines")


def test_lines_wait_in_their_file_while_the_screen_is_behind(tmp_path: Path) -> None:
    """What is sent and not yet shown is bounded, however often the agent looks; once it is shown, the rest follows."""
    with driven_agent(tmp_path) as agent:
        agent.run(WRITER)
        wait_for((tmp_path / "written").exists, "the output")
        events: list[dict[str, Any]] = []
        for _ in range(TURNS):
            agent.send(PING)
            events += agent.until("pulse")
        assert 0 < shown(events) <= ROOM + CHUNK < TURNS * CHUNK
        told = 0
        while (now := shown(events)) < LINES * (len(LINE) + 1):
            agent.send({"do": "shown", "bytes": now - told})
            told = now
            events += agent.until("lines")
    lines = [line for event in events if event["ev"] == "lines" for line in event["lines"]]
    assert lines == [LINE] * LINES


def test_no_more_lines_are_taken_while_nobody_reads_the_pipe() -> None:
    """Even if all that was sent counts as shown, what waits for the pipe is bounded."""
    read, write = os.pipe()
    output = LauncherStream(write, "h")
    taken = 0
    while output.has_room and taken < 100:
        output.lines(0, [LINE] * 1000)
        output.unshown -= 1000 * (len(LINE) + 1)
        output.flush()
        taken += 1
    assert output.waiting < 2 * ROOM
    assert taken < 100
    while output.waiting:
        os.read(read, 1 << 16)
        output.flush()
    assert output.has_room
    os.close(read)
    os.close(write)


def test_an_event_goes_before_a_piece_of_a_file_that_waits() -> None:
    """Also where the pipe is full when both are sent."""
    read, write = os.pipe()
    output = LauncherStream(write, "h")
    output.lines(0, [LINE] * 1000)
    output.flush()
    output.file("rank_0/log.txt", 0, b"x")
    assert not output.has_room_for_a_piece
    output.event("idle")
    decoder = Decoder()
    events: list[dict[str, Any]] = []
    while output.is_waiting or len(events) < 3:
        events += decoder.feed(os.read(read, 1 << 16))
        output.flush()
    assert [event["ev"] for event in events] == ["lines", "idle", "file"]
    os.close(read)
    os.close(write)
