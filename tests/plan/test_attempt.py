"""Further attempts: when one is made, how long is waited before it, and with which hosts."""

from __future__ import annotations

import pytest

from mslaunch.hosts import Host
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Restarts
from mslaunch.plan.next_attempt import STOPPED, AttemptEnding, hosts_left, pause, refusal, spent
from tests.plan.test_make import facts_of, plan_of, spec_of

HOSTS = (Host("a", "10.0.0.1", (0, 1)), Host("b", "10.0.0.2", (0,)))


FAILED = AttemptEnding("exit")


def restarts_of(limit: int, min_workers: int | None = None) -> Restarts:
    """What the plan of a job has to say of its restarts."""
    return plan_of(spec_of(workers=2, max_restarts=limit, min_workers=min_workers)).restarts


def failed_at(step: int, saved: int | None = None, error: str | None = "ValueError: x") -> AttemptEnding:
    """An attempt of one epoch that raised after a step, and what it had saved."""
    return AttemptEnding("exception", 1, error, "ValueError", (1, step), None if saved is None else (1, saved))


def test_the_pause_doubles_with_every_attempt_up_to_a_minute() -> None:
    """launch.backoff is the first pause."""
    restarts = restarts_of(9)
    pauses = [pause(restarts, [FAILED] * count) for count in range(1, 7)]
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_progress_makes_the_pause_short_again() -> None:
    """What fails next has nothing to do with what failed before."""
    assert pause(restarts_of(9), [FAILED, FAILED, failed_at(9, saved=8)]) == 5.0


@pytest.mark.parametrize(
    ("cause", "restarts"),
    [
        ("exit", True),
        ("signal", True),
        ("stalled", True),
        ("setup", False),
        ("timeout", False),
        ("stuck", False),
        ("no init", False),
    ],
)
def test_what_would_fail_again_is_not_tried_again(cause: str, restarts: bool) -> None:
    """A set-up that fails, a time that is up and a process that hangs in the kernel are the same the next time."""
    assert (refusal(restarts_of(1), [AttemptEnding(cause)]) is None) is restarts


@pytest.mark.parametrize(
    ("endings", "restarts"),
    [
        ([failed_at(7), failed_at(7)], False),
        ([failed_at(7), failed_at(8)], True),
        ([failed_at(7), failed_at(7, error="KeyError: 'y'")], True),
        ([failed_at(7), failed_at(7, saved=5)], False),
        ([failed_at(7), FAILED, failed_at(7)], True),
        ([failed_at(7, error="E: at 0x7f01"), failed_at(7, error="E: at 0x7f02")], False),
        ([AttemptEnding("exception", 1, "E"), AttemptEnding("exception", 1, "E")], True),
    ],
)
def test_the_same_failure_at_the_same_step_twice_is_not_tried_again(
    endings: list[AttemptEnding], restarts: bool
) -> None:
    """In consecutive attempts, and only where the step is known."""
    assert (refusal(restarts_of(9), endings) is None) is restarts


def test_attempts_that_make_progress_use_up_no_restart() -> None:
    """As many without progress as launch.max_restarts are allowed beside them."""
    steps = [failed_at(step, saved=step - 1) for step in (10, 20, 30)]
    assert refusal(restarts_of(1), steps) is None
    assert refusal(restarts_of(1), [*steps, failed_at(35, saved=29)]) is None
    assert refusal(restarts_of(1), [*steps, failed_at(35, saved=29), failed_at(34, saved=29)]) is not None


def test_a_checkpoint_that_is_written_again_is_no_progress() -> None:
    """A job that always begins anew gets no further than an earlier attempt."""
    assert spent([failed_at(12, saved=9), failed_at(11, saved=5), failed_at(13, saved=9)]) == 2


def test_a_job_is_not_restarted_for_ever_though_it_makes_progress() -> None:
    """Ten times launch.max_restarts are the most."""
    steps = [failed_at(step, saved=step) for step in range(1, 22)]
    assert refusal(restarts_of(2), steps[:20]) is None
    assert refusal(restarts_of(2), steps) is not None


def test_an_attempt_that_a_queue_preempted_uses_up_no_restart() -> None:
    """It has not failed."""
    assert refusal(restarts_of(1), [AttemptEnding(STOPPED), FAILED]) is None


@pytest.mark.parametrize(("min_workers", "restarts"), [(None, False), (1, True)])
def test_a_lost_host_is_no_reason_to_restart_unless_fewer_ranks_will_do(
    min_workers: int | None, restarts: bool
) -> None:
    """launch.min_workers says so."""
    assert (refusal(restarts_of(1, min_workers), [AttemptEnding("host lost", 125)]) is None) is restarts


@pytest.mark.parametrize(("min_workers", "left"), [(1, ["a"]), (2, ["a"]), (3, [])])
def test_the_hosts_that_are_left_must_have_enough_ranks(min_workers: int, left: list[str]) -> None:
    """Exactly as many as launch.min_workers are enough."""
    plan = make_plan(spec_of(workers=3, max_restarts=1, min_workers=min_workers), HOSTS, facts_of(HOSTS))
    assert [host.name for host in hosts_left(plan, {"b"})] == left
