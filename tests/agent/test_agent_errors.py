"""What a machine may lack (files, disks, folders) never ends an agent: it is told, and the agent goes on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from mslaunch.shared.follow import Follower
from tests.beds.driven_agent import PING, DrivenAgent, driven_agent


def assert_alive(agent: DrivenAgent) -> None:
    agent.send(PING)
    agent.until("pulse")


def test_a_set_up_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    """The run's folder is no folder here."""
    (tmp_path / "file").write_text("")
    with driven_agent(tmp_path) as agent:
        agent.run("true", setup="true", run_dir=str(tmp_path / "file" / "run"))
        failed = agent.until("start-failed")[-1]
        assert failed["role"] == "launch.setup"
        assert "Not a directory" in failed["why"]
        assert_alive(agent)


def test_a_log_that_cannot_be_opened_is_the_reason(tmp_path: Path) -> None:
    """Not only exit code 127."""
    (tmp_path / "rank_0" / "log.txt").mkdir(parents=True)
    with driven_agent(tmp_path) as agent:
        agent.run("true", tail=[])
        failed = agent.until("start-failed")[-1]
        assert (failed["role"], failed["rank"]) == ("worker", 0)
        assert "Is a directory" in failed["why"]
        assert_alive(agent)


def test_logs_that_cannot_be_put_aside_do_not_stop_a_restart(tmp_path: Path) -> None:
    """A note tells, and the ranks are started."""
    (tmp_path / "rank_0" / "log.0.txt" / "full").mkdir(parents=True)
    (tmp_path / "rank_0" / "log.txt").write_text("before\n")
    with driven_agent(tmp_path) as agent:
        agent.run("true", attempt=1)
        events = agent.until("exited", rank=0)
        assert "not put aside" in next(event["text"] for event in events if event["ev"] == "agent-note")


def test_an_order_that_fails_is_told(tmp_path: Path) -> None:
    """A plan that cannot be carried out at all is a failed start, not a dead agent."""
    with driven_agent(tmp_path) as agent:
        agent.run("true", run_dir=str(tmp_path / ("x" * 300)), setup="true")
        assert "File name too long" in agent.until("start-failed")[-1]["why"]
        assert_alive(agent)


def test_more_logs_than_open_files_can_be_followed(tmp_path: Path) -> None:
    """Followed logs leave room for what the agent needs to start and to end ranks."""
    with driven_agent(tmp_path) as agent:
        pid = agent.until("hello")[-1]["pid"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (48, 48))
        agent.run(*["echo hello; sleep 600"] * 60)
        ended: list[dict[str, Any]] = agent.until("started", rank=59)
        agent.send({"do": "stop", "grace": 0.0})
        ended += agent.until("idle")
        assert [event["ev"] for event in ended].count("exited") == 60
        assert not [event for event in ended if event["ev"] in ("agent-note", "start-failed")]


@pytest.mark.parametrize("method", ["read", "behind", "rest"])
def test_a_file_that_cannot_be_read_is_followed_without_an_error(tmp_path: Path, method: str) -> None:
    """Disks fail and servers restart; a folder fails alike."""
    follower = Follower(str(tmp_path))
    assert follower.read() == []
    assert not getattr(follower, method)() or method == "behind"
    follower.close()
