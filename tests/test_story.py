"""Histories replayed: what the launcher decides from the agents' events."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mslaunch.launch.story import Order, Story
from tests.plan.test_make import plan_of, spec_of

STOP = [Order("stop", 10.0)]


def story_of(workers: int = 3, method: str = "dynamic", **flags: Any) -> Story:
    return Story(plan_of(spec_of(workers=workers, method=method, **flags)))


def event(name: str, at: float, **data: Any) -> dict[str, Any]:
    return {"ev": name, "host": "localhost", "time": at, **data}


def started(rank: int, at: float = 0.0) -> dict[str, Any]:
    return event("started", at, role="worker", rank=rank, pid=100 + rank)


def exited(rank: int, at: float, code: int | None = 0, number: int | None = None) -> dict[str, Any]:
    return event("exited", at, role="worker", rank=rank, pid=100 + rank, code=code, signal=number)


def error(rank: int, at: float, message: str = "ValueError: x") -> dict[str, Any]:
    return event("error", at, rank=rank, message=message)


def tell(story: Story, *events: dict[str, Any]) -> list[Order]:
    return [order for item in events for order in story.see(item)]


def test_success_is_all_ranks_ending_well() -> None:
    """When the last rank ends, agents are told to tidy up; the run is over when nothing is left."""
    story = story_of(2)
    assert tell(story, started(0), started(1), exited(1, 1)) == []
    assert tell(story, exited(0, 2)) == [Order("finish")]
    before = story.over
    tell(story, event("idle", 3))
    assert (before, story.over) == (False, True)
    assert story.failures == []


@pytest.mark.parametrize(
    ("code", "number", "expected"), [(7, None, 7), (None, signal.SIGKILL, 137), (None, signal.SIGSEGV, 139)]
)
def test_the_first_failure_ends_the_job_and_gives_its_code(code: int | None, number: int | None, expected: int) -> None:
    """The others are stopped once, and are not failures."""
    story = story_of()
    assert tell(story, exited(1, 1, code, number)) == STOP
    assert tell(story, exited(0, 2, None, 15), exited(2, 2, 143), event("idle", 3)) == []
    failure = story.failures[0]
    assert (failure.rank, failure.signal) == (1, number)
    assert failure.exit_code == expected


def test_an_exception_counts_from_when_it_was_raised() -> None:
    """MindSpore's teardown takes a second: a rank that raised earlier, but ended later, is the first failure."""
    story = story_of()
    assert tell(story, exited(2, 5.0, 1)) == STOP
    tell(story, error(0, 4.5), exited(0, 6.0, None, signal.SIGTERM))
    failure = min(story.failures, key=lambda failure: failure.time)
    assert (failure.rank, failure.cause) == (0, "exception")
    assert (story.ranks[0].exit_code, story.ranks[0].signal) == (1, None)


def test_a_signal_stops_the_job_and_a_second_does_not_wait() -> None:
    """Ctrl-C gives the ranks their grace; again, and it is over. The exit code is the signal's."""
    story = story_of()
    assert story.interrupted(signal.SIGINT) == STOP
    assert story.interrupted(signal.SIGINT) == [Order("stop", 0.0)]
    assert tell(story, exited(0, 1, None, 15)) == []
    assert (story.interrupt, story.failures) == (signal.SIGINT, [])


def test_a_dead_scheduler_ends_the_job_as_lost() -> None:
    """No rank is to blame, and the exit code says so."""
    story = story_of()
    assert tell(story, event("exited", 1, role="scheduler", rank=None, pid=9, code=None, signal=9)) == STOP
    failure = story.failures[0]
    assert (failure.rank, failure.cause, failure.exit_code) == (None, "scheduler", 125)


def test_a_scheduler_that_leaves_when_its_cluster_does_is_no_failure() -> None:
    """It ends by itself once the ranks have said good-bye to it."""
    story = story_of(1)
    assert tell(story, event("exited", 1, role="scheduler", rank=None, pid=9, code=0, signal=None)) == []
    assert tell(story, exited(0, 2)) == [Order("finish")]


def test_a_script_that_ends_before_its_ranks_is_the_failure() -> None:
    """mpirun may refuse before any rank has started; its own log is where the reason is."""
    story = story_of(2, "mpirun")
    assert tell(story, event("exited", 1, role="script", rank=None, pid=9, code=213, signal=None)) == STOP
    failure = story.failures[0]
    assert failure.log is not None
    assert failure.log.endswith("scripts/mpirun.log")
    assert failure.exit_code == 213


def test_a_lost_agent_ends_the_job() -> None:
    """The host is named, and nothing more is expected of it."""
    story = story_of()
    assert story.host_lost(("localhost",), 1.0) == STOP
    assert story.over
    assert [failure.exit_code for failure in story.failures] == [125]
    assert story.host_lost(("localhost",), 2.0) == []


def test_failed_set_up_means_not_ready() -> None:
    """launch.setup that fails is exit code 3."""
    story = story_of()
    assert tell(story, event("setup-failed", 1, code=2, log="/x/setup.log")) == STOP
    assert story.failures[0].exit_code == 3


def test_ctrl_c_only_hurries_a_job_that_has_failed() -> None:
    """Its verdict and exit code stay."""
    story = story_of()
    tell(story, exited(1, 1.0, 7))
    assert story.interrupted(signal.SIGINT) == [Order("stop", 0.0)]
    assert (story.interrupt, story.failures[0].exit_code) == (None, 7)


def test_a_crash_that_is_told_late_still_counts() -> None:
    """A slow core dump does not hide behind the exception of its victim."""
    story = story_of()
    tell(story, error(0, 5.2), exited(1, 5.5, None, signal.SIGSEGV), exited(2, 5.6, None, signal.SIGTERM))
    assert [(failure.rank, failure.signal) for failure in story.failures] == [(0, None), (1, signal.SIGSEGV)]


def test_a_rank_that_cannot_be_started_is_the_failure() -> None:
    """No more processes, or a full disk: with what the system said."""
    story = story_of()
    assert (
        tell(story, event("start-failed", 1.0, role="worker", rank=2, why="Resource temporarily unavailable")) == STOP
    )
    assert (story.failures[0].rank, story.failures[0].exit_code) == (2, 126)
    assert "Resource temporarily unavailable" in story.failures[0].summary


def test_a_process_that_cannot_be_ended_is_named() -> None:
    """One that hangs in a driver does not hang the launcher."""
    story = story_of()
    tell(story, exited(1, 1.0, 7), event("stuck", 30.0, processes=["42 (python, state D)"]), event("idle", 30.0))
    assert story.over
    assert "42 (python, state D)" in story.take_notes()[0]


def test_an_agent_that_gives_up_is_not_a_ranks_fault() -> None:
    """Told to end, or left without a word: exit code 125."""
    story = story_of()
    assert tell(story, event("abandoned", 1.0, why="the agent was told to end"), exited(0, 1.1, None, 15)) == STOP
    assert [(failure.rank, failure.exit_code) for failure in story.failures] == [(None, 125)]


def test_a_crash_after_the_script_has_ended_is_told_and_is_no_failure() -> None:
    """MindSpore may crash while it is taken apart; mpirun then kills the others, who have done their work too."""
    story = story_of(2, "mpirun")
    tell(story, started(0), started(1), event("done", 1.0, rank=0), event("done", 1.0, rank=1))
    assert tell(story, exited(0, 2.0, None, 11)) == []
    assert story.take_notes() == [
        "rank 0 was ended by SIGSEGV while MindSpore was taken apart; its script had ended well before, so that counts"
    ]
    assert tell(story, event("exited", 2.1, role="script", rank=None, pid=1, code=139, signal=None)) == []
    assert tell(story, exited(1, 2.2, None, 15)) == [Order("finish")]
    assert story.failures == []


def test_a_crash_before_the_script_has_ended_is_a_failure() -> None:
    story = story_of(2)
    assert tell(story, started(0), started(1), event("done", 1.0, rank=1), exited(0, 2.0, None, 11)) == STOP
    assert story.failures[0].rank == 0
