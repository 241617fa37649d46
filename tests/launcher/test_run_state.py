"""Histories replayed: what the launcher decides from the agents' events."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.attempt.timeouts import Timeouts
from tests.plan.test_make import plan_of, spec_of

STOP = [Order("stop", 10.0)]


def run_state_of(workers: int = 3, method: str = "dynamic", **flags: Any) -> RunState:
    return RunState(plan_of(spec_of(workers=workers, method=method, **flags)))


def event(name: str, at: float, **data: Any) -> dict[str, Any]:
    return {"ev": name, "host": "localhost", "time": at, **data}


def started(rank: int, at: float = 0.0) -> dict[str, Any]:
    return event("started", at, role="worker", rank=rank, pid=100 + rank)


def exited(rank: int, at: float, code: int | None = 0, number: int | None = None) -> dict[str, Any]:
    return event("exited", at, role="worker", rank=rank, pid=100 + rank, code=code, signal=number)


def error(rank: int, at: float, message: str = "ValueError: x") -> dict[str, Any]:
    return event("error", at, rank=rank, message=message)


def tell(run_state: RunState, *events: dict[str, Any]) -> list[Order]:
    return [order for item in events for order in run_state.dispatch(item, item["time"])]


def test_success_is_all_ranks_ending_well() -> None:
    """When the last rank ends, agents are told to tidy up; the run is over when nothing is left."""
    run_state = run_state_of(2)
    assert tell(run_state, started(0), started(1), exited(1, 1)) == []
    assert tell(run_state, exited(0, 2)) == [Order("finish")]
    before = bool(run_state.hosts.busy)
    tell(run_state, event("idle", 3))
    assert (before, run_state.hosts.busy) == (True, set())
    assert run_state.ending.failures == []


@pytest.mark.parametrize(
    ("code", "number", "expected"), [(7, None, 7), (None, signal.SIGKILL, 137), (None, signal.SIGSEGV, 139)]
)
def test_the_first_failure_ends_the_job_and_gives_its_code(code: int | None, number: int | None, expected: int) -> None:
    """The others are stopped once, and are not failures."""
    run_state = run_state_of()
    assert tell(run_state, exited(1, 1, code, number)) == STOP
    assert tell(run_state, exited(0, 2, None, 15), exited(2, 2, 143), event("idle", 3)) == []
    failure = run_state.ending.failures[0]
    assert (failure.rank, failure.signal) == (1, number)
    assert failure.exit_code == expected


def test_an_exception_counts_from_when_it_was_raised() -> None:
    """MindSpore's teardown takes a second: a rank that raised earlier, but ended later, is the first failure."""
    run_state = run_state_of()
    assert tell(run_state, exited(2, 5.0, 1)) == STOP
    tell(run_state, error(0, 4.5), exited(0, 6.0, None, signal.SIGTERM))
    failure = min(run_state.ending.failures, key=lambda failure: failure.time)
    assert (failure.rank, failure.cause) == (0, "exception")
    assert (run_state.ranks.records[0].exit_code, run_state.ranks.records[0].signal) == (1, None)


def test_a_signal_stops_the_job_and_a_second_does_not_wait() -> None:
    """Ctrl-C gives the ranks their grace; again, and it is over. The exit code is the signal's."""
    run_state = run_state_of()
    assert run_state.ending.interrupted(signal.SIGINT) == STOP
    assert run_state.ending.interrupted(signal.SIGINT) == [Order("stop", 0.0)]
    assert tell(run_state, exited(0, 1, None, 15)) == []
    assert (run_state.ending.interrupt, run_state.ending.failures) == (signal.SIGINT, [])


def test_a_dead_scheduler_ends_the_job_as_lost() -> None:
    """No rank is to blame, and the exit code says so."""
    run_state = run_state_of()
    assert tell(run_state, event("exited", 1, role="scheduler", rank=None, pid=9, code=None, signal=9)) == STOP
    failure = run_state.ending.failures[0]
    assert (failure.rank, failure.cause, failure.exit_code) == (None, "scheduler", 125)


def test_a_scheduler_that_leaves_when_its_cluster_does_is_no_failure() -> None:
    """It ends by itself once the ranks have said good-bye to it."""
    run_state = run_state_of(1)
    assert tell(run_state, event("exited", 1, role="scheduler", rank=None, pid=9, code=0, signal=None)) == []
    assert tell(run_state, exited(0, 2)) == [Order("finish")]


def test_a_script_that_ends_before_its_ranks_is_the_failure() -> None:
    """mpirun may refuse before any rank has started; its own log is where the reason is."""
    run_state = run_state_of(2, "mpirun")
    assert tell(run_state, event("exited", 1, role="script", rank=None, pid=9, code=213, signal=None)) == STOP
    failure = run_state.ending.failures[0]
    assert failure.log is not None
    assert failure.log.endswith("scripts/mpirun.log")
    assert failure.exit_code == 213


def test_a_lost_agent_ends_the_job() -> None:
    """The host is named, and nothing more is expected of it."""
    run_state = run_state_of()
    assert run_state.host_lost(("localhost",), 1.0) == STOP
    assert not run_state.hosts.busy
    assert [failure.exit_code for failure in run_state.ending.failures] == [125]
    assert run_state.host_lost(("localhost",), 2.0) == []


def test_failed_set_up_means_not_ready() -> None:
    """launch.setup that fails is exit code 3."""
    run_state = run_state_of()
    assert tell(run_state, event("setup-failed", 1, code=2, log="/x/setup.log")) == STOP
    assert run_state.ending.failures[0].exit_code == 3


def test_ctrl_c_only_hurries_a_job_that_has_failed() -> None:
    """Its verdict and exit code stay."""
    run_state = run_state_of()
    tell(run_state, exited(1, 1.0, 7))
    assert run_state.ending.interrupted(signal.SIGINT) == [Order("stop", 0.0)]
    assert (run_state.ending.interrupt, run_state.ending.failures[0].exit_code) == (None, 7)


def test_a_crash_that_is_told_late_still_counts() -> None:
    """A slow core dump does not hide behind the exception of its victim."""
    run_state = run_state_of()
    tell(run_state, error(0, 5.2), exited(1, 5.5, None, signal.SIGSEGV), exited(2, 5.6, None, signal.SIGTERM))
    assert [(failure.rank, failure.signal) for failure in run_state.ending.failures] == [(0, None), (1, signal.SIGSEGV)]


def test_a_rank_that_cannot_be_started_is_the_failure() -> None:
    """No more processes, or a full disk: with what the system said."""
    run_state = run_state_of()
    assert (
        tell(run_state, event("start-failed", 1.0, role="worker", rank=2, why="Resource temporarily unavailable"))
        == STOP
    )
    assert (run_state.ending.failures[0].rank, run_state.ending.failures[0].exit_code) == (2, 3)
    assert "Resource temporarily unavailable" in run_state.ending.failures[0].summary


def test_a_process_that_cannot_be_ended_is_named() -> None:
    """One that hangs in a driver does not hang the launcher."""
    run_state = run_state_of()
    tell(run_state, exited(1, 1.0, 7), event("stuck", 30.0, processes=["42 (python, state D)"]), event("idle", 30.0))
    assert not run_state.hosts.busy
    assert "42 (python, state D)" in run_state.pop_notes()[0]


def test_an_agent_that_gives_up_is_not_a_ranks_fault() -> None:
    """Told to end, or left without a word: exit code 125."""
    run_state = run_state_of()
    assert tell(run_state, event("abandoned", 1.0, why="the agent was told to end"), exited(0, 1.1, None, 15)) == STOP
    assert [(failure.rank, failure.exit_code) for failure in run_state.ending.failures] == [(None, 125)]


def test_a_crash_after_the_script_has_ended_is_told_and_is_no_failure() -> None:
    """MindSpore may crash while it is taken apart; mpirun then kills the others, who have done their work too."""
    run_state = run_state_of(2, "mpirun")
    tell(run_state, started(0), started(1), event("done", 1.0, rank=0), event("done", 1.0, rank=1))
    assert tell(run_state, exited(0, 2.0, None, 11)) == []
    assert run_state.pop_notes() == [
        "rank 0 was ended by SIGSEGV while MindSpore was taken apart; its script had ended well before, so that counts"
    ]
    assert tell(run_state, event("exited", 2.1, role="script", rank=None, pid=1, code=139, signal=None)) == []
    assert tell(run_state, exited(1, 2.2, None, 15)) == [Order("finish")]
    assert run_state.ending.failures == []


def test_a_crash_before_the_script_has_ended_is_a_failure() -> None:
    run_state = run_state_of(2)
    assert tell(run_state, started(0), started(1), event("done", 1.0, rank=1), exited(0, 2.0, None, 11)) == STOP
    assert run_state.ending.failures[0].rank == 0


def test_the_time_that_ranks_may_outlive_another_begins_when_all_have_started() -> None:
    """On a busy machine the first of a thousand ranks may end before the last one has started."""
    run_state = run_state_of(3, exit_skew=10.0)
    timeouts = Timeouts(run_state)
    tell(run_state, started(0, 1.0), exited(0, 2.0), started(1, 9.0))
    assert timeouts.check(9.5, 0.0) == []
    assert run_state.pop_notes() == []
    assert timeouts.check(13.0, 0.0) == [Order("activity")]
    assert "rank 0 has ended with code 0" in run_state.pop_notes()[0]


def test_a_signal_after_all_ranks_have_ended_well_changes_nothing_about_that() -> None:
    """What is left is only hurried on: the agents' own processes, MindSpore's scheduler."""
    run_state = run_state_of(2)
    tell(run_state, started(0), started(1), exited(0, 1), exited(1, 1))
    assert run_state.ending.interrupted(signal.SIGINT) == STOP
    assert run_state.ending.interrupt is None
    assert run_state.ending.failures == []


@pytest.mark.parametrize(
    ("seen", "note"),
    [
        ((), []),
        ((("import", 0),), []),
        ((("imported", 0),), ["2 ranks ran, none called init(): each worked alone"]),
        ((("imported", 0), ("joining", 1)), []),
    ],
)
def test_ranks_that_trained_alone_are_told_of_where_that_is_known(seen: tuple[Any, ...], note: list[str]) -> None:
    """A job without MindSpore, one that only looked for it and one that called init() are not accused."""
    run_state = run_state_of(2)
    tell(run_state, *(event(name, 1.0, rank=rank, message=None) for name, rank in seen), exited(0, 2), exited(1, 2))
    assert run_state.pop_notes() == note
    assert run_state.ending.failures == []


def test_one_rank_needs_no_init() -> None:
    """It has nobody to train with."""
    run_state = run_state_of(1, require_init=True)
    tell(run_state, event("imported", 1.0, rank=0, message=None), exited(0, 2))
    assert (run_state.pop_notes(), run_state.ending.failures) == ([], [])


def test_ranks_that_trained_alone_fail_where_init_is_required() -> None:
    """The job still ends in order, and its exit code is 1."""
    run_state = run_state_of(2, require_init=True)
    tell(run_state, event("imported", 1.0, rank=0, message=None), exited(0, 2))
    assert tell(run_state, exited(1, 2)) == [Order("finish")]
    assert [(failure.cause, failure.exit_code) for failure in run_state.ending.failures] == [("no init", 1)]


def test_a_host_that_is_lost_after_the_ranks_stops_no_other() -> None:
    """The other hosts may be sending their data; the loss is a failure all the same."""
    run_state = run_state_of(1)
    tell(run_state, started(0), exited(0, 1))
    assert run_state.host_lost(("localhost",), 2.0) == []
    assert [failure.cause for failure in run_state.ending.failures] == ["host lost"]


def test_data_that_is_not_fetched_ends_the_job() -> None:
    """launch.sync that fails before the ranks start is exit code 3."""
    run_state = run_state_of(1)
    assert tell(run_state, event("sync-failed", 1, why="no bucket")) == STOP
    failure = run_state.ending.failures[0]
    assert (failure.exit_code, failure.summary) == (3, "launch.sync failed on localhost: no bucket")


def test_the_age_of_a_step_does_not_depend_on_the_clock_of_its_host() -> None:
    """A host whose clock is an hour behind makes steps as any other; samples of its load are no steps."""
    run_state = run_state_of(1)
    behind = 3600.0
    rows: list[dict[str, Any]] = [{"rank": 0, "device": None, "time": 98.0 - behind, "values": {"step": 7}}]
    run_state.dispatch(event("metrics", 100.0 - behind, rows=rows), 100.0)
    rows = [{"rank": 0, "device": None, "time": 140.0 - behind, "values": {"cpu": 0.1}}]
    run_state.dispatch(event("metrics", 140.0 - behind, rows=rows), 140.0)
    assert run_state.numbers.shown(0, 145.0) == ({"step": 7, "cpu": 0.1}, 47.0)
