"""Growing files are read line by line."""

from __future__ import annotations

import os
from pathlib import Path

from mslaunch.shared.follow import Follower


def test_whole_lines_come_as_the_file_grows(tmp_path: Path) -> None:
    """A line that is half written waits for its other half; the last one may do without a newline."""
    path = tmp_path / "log.txt"
    follower = Follower(str(path))
    assert follower.read() == []
    path.write_text("one\ntw")
    assert follower.read() == ["one"]
    with path.open("a") as file:
        file.write("o\nthree")
    assert follower.read() == ["two"]
    assert follower.rest() == ["three"]
    assert follower.rest() == []
    follower.close()


def test_bytes_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    """A rank may print anything."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"a\xff\xfeb\r\n\0\n")
    follower = Follower(str(path))
    assert follower.read() == ["a\ufffd\ufffdb", "\0"]
    follower.close()


def test_a_line_without_end_stays_bounded(tmp_path: Path) -> None:
    """A progress bar that never prints a newline does not grow in memory."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * 1000)
    follower = Follower(str(path))
    pieces = [line for _ in range(11) for line in follower.read(limit=100)]
    assert "".join([*pieces, *follower.rest()]) == "x" * 1000
    assert len(pieces) >= 4
    follower.close()


def test_far_behind_it_can_skip_to_the_end(tmp_path: Path) -> None:
    """What was passed over is counted."""
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{i:04d}\n" for i in range(1000)))
    follower = Follower(str(path))
    assert follower.behind() == 5000
    assert follower.finish(most=100, keep=10) == (4990, ["0998", "0999"])


def test_the_end_of_a_log_is_where_it_was_when_its_rank_ended(tmp_path: Path) -> None:
    """A process that writes on meanwhile does not keep the reader: it stops at the size it saw first."""
    path = tmp_path / "log.txt"
    path.write_text("last words\n")

    class Growing(Follower):
        def read(self, limit: int = 0) -> list[str]:
            with path.open("a") as file:
                file.write("still here\n")
            return super().read(limit)

    assert Growing(str(path)).finish(most=1 << 20, keep=1 << 16) == (0, ["last words"])


def test_a_log_that_cannot_be_opened_is_asked_for_again(tmp_path: Path) -> None:
    """No handle left, a file server that does not answer: the agent goes on, and reads it later."""
    path = tmp_path / "log.txt"
    path.symlink_to(path)
    follower = Follower(str(path))
    assert follower.read() == []
    path.unlink()
    path.write_text("here\n")
    assert follower.read() == ["here"]
    follower.close()


def test_what_has_taken_the_place_of_a_log_is_waiting(tmp_path: Path) -> None:
    """A restart puts the log of the attempt before aside; whoever only reads what is waiting reads on."""
    path = tmp_path / "log.txt"
    path.write_text("first\n")
    follower = Follower(str(path))
    assert follower.read() == ["first"]
    path.rename(tmp_path / "log.0.txt")
    path.write_text("second\n")
    assert follower.behind() == len("second\n")
    assert follower.read() == ["second"]
    follower.close()


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would never return."""
    os.mkfifo(tmp_path / "log.txt")
    follower = Follower(str(tmp_path / "log.txt"))
    assert follower.read() == []
    assert follower.behind() == 0
