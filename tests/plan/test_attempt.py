"""Further attempts: when one is made, how long is waited before it, and with which hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mslaunch.hosts import Host
from mslaunch.plan.make import make_plan
from mslaunch.plan.next_attempt import hosts_left, may_restart, pause
from tests.plan.test_make import facts_of, plan_of, spec_of

HOSTS = (Host("a", "10.0.0.1", (0, 1)), Host("b", "10.0.0.2", (0,)))


def test_the_pause_doubles_with_every_attempt_up_to_a_minute() -> None:
    """launch.backoff is the first pause."""
    plan = plan_of(spec_of(workers=1, backoff=5))
    assert [pause(replace(plan, attempt=attempt)) for attempt in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("cause", "restarts"),
    [("exit", True), ("signal", True), ("stalled", True), ("setup", False), ("timeout", False), ("stuck", False)],
)
def test_what_would_fail_again_is_not_tried_again(cause: str, restarts: bool) -> None:
    """A set-up that fails, a time that is up and a process that hangs in the kernel are the same the next time."""
    assert may_restart(plan_of(spec_of(workers=1, max_restarts=1)), 1, cause, None) is restarts


@pytest.mark.parametrize(("min_workers", "restarts"), [(None, False), (1, True)])
def test_a_lost_host_is_no_reason_to_restart_unless_fewer_ranks_will_do(
    min_workers: int | None, restarts: bool
) -> None:
    """launch.min_workers says so."""
    plan = plan_of(spec_of(workers=2, max_restarts=1))
    plan = replace(plan, restarts=replace(plan.restarts, min_workers=min_workers))
    assert may_restart(plan, 125, "host lost", None) is restarts


@pytest.mark.parametrize(("min_workers", "left"), [(1, ["a"]), (2, ["a"]), (3, [])])
def test_the_hosts_that_are_left_must_have_enough_ranks(min_workers: int, left: list[str]) -> None:
    """Exactly as many as launch.min_workers are enough."""
    plan = make_plan(spec_of(workers=3, max_restarts=1, min_workers=min_workers), HOSTS, facts_of(HOSTS))
    assert [host.name for host in hosts_left(plan, {"b"})] == left
