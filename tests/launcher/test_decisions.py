"""Histories replayed that come about rarely: Slurm's end, several hosts, hangs, agents that end early."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.diagnose.verdict import Verdict
from mslaunch.documents.schema import RunStatus
from mslaunch.hosts import Host
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.attempt.timeouts import Timeouts
from mslaunch.launcher.execute import combine, conclude
from mslaunch.launcher.restarts import NextAttempt, RestartTools, find_resume, prepare_next
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Plan, Reach
from mslaunch.run import record
from mslaunch.run.paths import RunFolder
from tests.launcher.test_run_state import STOP, event, exited, run_state_of, started, tell
from tests.plan.test_make import facts_of, plan_of, spec_of

AT_ONCE = [Order("stop", 0.0)]
STACK = 'Current thread 0x1 (most recent call first):\n  File "/run/code/train.py", line {line} in step\n'
CHECKPOINT = next((Path(__file__).parents[1] / "fixtures/checkpoints").rglob("*.ckpt"))


def slurm_run_state() -> RunState:
    return RunState(plan_of(spec_of(workers=2)), agents_are_stopped=True)


def ended_by_slurm(at: float) -> dict[str, Any]:
    return event("abandoned", at, why="the agent was told to end", signal=int(signal.SIGTERM))


def stacks(at: float, *lines: int) -> dict[str, Any]:
    """Stacks of ranks, each at one line of the script."""
    return event("stacks", at, stacks={str(rank): STACK.format(line=line) for rank, line in enumerate(lines)})


def stalled(**flags: Any) -> tuple[RunState, Timeouts]:
    """Four ranks that have been quiet for longer than they may, and whose stacks have been asked for."""
    run_state = run_state_of(4, stall_timeout=5, **flags)
    timeouts = Timeouts(run_state)
    tell(run_state, *(started(rank, 10.0) for rank in range(4)), event("pulse", 16.0, quiet=6.0))
    assert timeouts.check(16.0, 0.0) == [Order("stacks")]
    return run_state, timeouts


def test_slurm_s_signal_to_the_agents_and_to_the_launcher_is_one() -> None:
    """Whichever is told first, the ranks have their grace; only a further signal does not wait."""
    run_state = slurm_run_state()
    assert tell(run_state, ended_by_slurm(1.0), ended_by_slurm(1.1)) == STOP
    assert run_state.ending.interrupted(signal.SIGTERM) == STOP
    assert run_state.ending.interrupted(signal.SIGTERM) == AT_ONCE
    assert run_state.ending.interrupt == signal.SIGTERM


def test_slurm_s_end_of_a_job_that_has_failed_does_not_hide_the_failure() -> None:
    """It was ending anyway."""
    run_state = slurm_run_state()
    assert tell(run_state, exited(1, 1.0, 7), ended_by_slurm(1.1)) == STOP
    assert run_state.ending.interrupt is None
    assert [failure.exit_code for failure in run_state.ending.failures] == [7]


def test_a_rank_that_ends_well_while_the_job_is_stopped_was_not_stopped() -> None:
    """Only those that did not end with code 0 count as stopped."""
    run_state = run_state_of(3)
    tell(run_state, exited(0, 1.0, 7), exited(1, 1.1, 0), exited(2, 1.2, None, signal.SIGTERM))
    assert [run_state.ranks.records[rank].stopped for rank in range(3)] == [False, False, True]


def test_a_script_that_ends_with_its_own_ranks_is_no_failure_of_other_hosts() -> None:
    """With one script a host, the ranks of the other host may go on."""
    hosts = (Host("a", "10.0.0.1", (0,)), Host("b", "10.0.0.2", (0,)))
    run_state = RunState(make_plan(spec_of(workers=2, method="rank-table"), hosts, facts_of(hosts), 0, Reach("ssh")))
    script = {"role": "script", "rank": None, "pid": 9, "code": 0, "signal": None}
    assert tell(run_state, event("done", 1.0, rank=0), {**event("exited", 1.1, **script), "host": "a"}) == []
    assert tell(run_state, {**event("exited", 1.2, **script), "host": "b"}) == STOP
    assert run_state.ending.failures[0].summary.endswith("before rank 1 had")


@pytest.mark.parametrize(("lines", "rank"), [((3, 3, 3, 8), 3), ((3, 8, 8, 3), None), ((3, 3, 3, 3), None)])
def test_a_hang_is_blamed_on_a_rank_only_if_it_is_the_only_odd_one(lines: tuple[int, ...], rank: int | None) -> None:
    """Where several stand apart, or none, no rank is named."""
    run_state, _ = stalled()
    assert tell(run_state, stacks(17.0, *lines)) == STOP
    assert run_state.ending.failures[0].rank == rank


def test_of_two_odd_ranks_none_is_blamed() -> None:
    """Three of five stand at one place, two at others."""
    run_state = run_state_of(5, stall_timeout=5)
    run_state.ask_for_stacks("stall")
    tell(run_state, stacks(17.0, 3, 3, 3, 8, 9))
    assert [failure.rank for failure in run_state.ending.failures] == [None]


@pytest.mark.parametrize(
    ("looks", "rank"),
    [
        (((3, 3, 3, 8), (3, 3, 3, 8)), 3),  # it stands apart, and none has moved
        (((3, 3, 3, 8), (3, 3, 3, 9)), None),  # it works, though slowly
        (((8, 3, 3, 3), (3, 3, 3, 8)), None),
        (((3, 3, 3, 3), (3, 3, 3, 3)), None),
    ],
)
def test_a_rank_is_blamed_for_a_job_that_took_too_long_only_if_none_has_moved(
    looks: tuple[tuple[int, ...], ...], rank: int | None
) -> None:
    """The stacks are taken twice, a second apart, and are in the summary whoever is to blame."""
    run_state = run_state_of(4, timeout=60)
    timeouts = Timeouts(run_state)
    tell(run_state, *(started(number, 1.0) for number in range(4)))
    assert timeouts.check(59.0, 0.0) == []
    assert timeouts.check(60.0, 0.0) == [Order("stacks")]
    assert timeouts.check(60.5, 0.0) == []
    tell(run_state, stacks(60.6, *looks[0]))
    assert timeouts.check(60.7, 0.0) == []
    assert timeouts.check(61.0, 0.0) == [Order("stacks")]
    tell(run_state, stacks(61.2, *looks[1]))
    assert timeouts.check(61.5, 0.0) == STOP
    (failure,) = run_state.ending.failures
    assert (failure.rank, failure.cause) == (rank, "timeout")
    assert failure.summary.startswith("the job took longer than 60 s (launch.timeout); rank")
    assert "train.py:3 in step" in failure.summary


def test_stacks_are_asked_for_once_a_hang() -> None:
    """Neither while they are being taken, nor again before the ranks have been quiet for as long once more."""
    run_state, timeouts = stalled(on_stall="report")
    tell(run_state, event("pulse", 18.0, quiet=8.0))
    assert timeouts.check(18.0, 0.0) == []
    tell(run_state, stacks(18.5, 3, 3, 3, 3), event("pulse", 20.0, quiet=10.0))
    assert timeouts.check(20.0, 0.0) == []
    tell(run_state, event("pulse", 23.6, quiet=13.6))
    assert timeouts.check(23.6, 0.0) == [Order("stacks")]


def test_a_rank_that_has_no_log_yet_has_been_quiet_only_since_its_start() -> None:
    """However long the agent has been there."""
    run_state = run_state_of(1, stall_timeout=5)
    tell(run_state, started(0, 60.0), event("pulse", 64.0, quiet=64.0))
    assert Timeouts(run_state).check(64.0, 0.0) == []


def test_a_rank_that_ends_early_is_told_of_once() -> None:
    """However often the clock is looked at."""
    run_state = run_state_of(2)
    tell(run_state, exited(0, 10.0))
    timeouts = Timeouts(run_state)
    for now in (39.0, 41.0, 42.0, 43.0):
        timeouts.check(now, 0.0)
    assert len(run_state.pop_notes()) == 1


def test_an_agent_that_ends_before_its_ranks_is_a_lost_host(tmp_path: Path) -> None:
    """It said that nothing is left, and had not told how the ranks ended: that is not success."""
    run_state = run_state_of(2)
    tell(run_state, started(0), started(1), exited(0, 1.0), event("idle", 2.0))
    assert not run_state.hosts.busy
    final = conclude(record.queued(run_state.plan, 0.0), run_state, RunFolder(tmp_path), 1.0)
    assert (final.state, final.exit_code) == ("failed", 125)
    assert final.verdict is not None
    assert final.verdict.summary == "the agent on localhost ended before rank 1 had"


@pytest.mark.parametrize(
    ("states", "decisive"),
    [
        (("failed", "running"), 1),
        (("succeeded", "failed", "failed"), 2),
        (("succeeded", "stopped"), 1),
        (("succeeded", "stopped", "failed"), 2),
    ],
)
def test_a_run_of_several_groups_fails_with_the_first_verdict(states: tuple[RunStatus, ...], decisive: int) -> None:
    """It goes on while one of them does, and its record has the ranks and the attempts of all."""
    groups = []
    for number, state in enumerate(states):
        plan = replace(plan_of(spec_of(workers=1)), group=f"replica_{number}")
        earlier = record.AttemptSummary(0, None, 1, None, None, plan.group)
        now = replace(record.queued(plan, 0.0), state=state, attempts=(earlier,) * number)
        if state != "running":
            now = now.end(state, record.iso(1000.0 - number), number)  # the last group ends first
        groups.append(now)
    run = combine(groups)
    assert (run.state, run.exit_code) == (states[decisive], groups[decisive].exit_code)
    assert run.world_size == len(groups)
    assert [run.attempt_of(rank.group) for rank in run.ranks] == list(range(len(groups)))


@pytest.mark.parametrize(("age", "resumed"), [(60, []), (-60, [0, 1])])
def test_a_job_does_not_resume_from_what_was_there_before_it(tmp_path: Path, age: int, resumed: list[int]) -> None:
    """Checkpoints that are older than the run are another job's."""
    folder = RunFolder(tmp_path)
    folder.plan.write_text("{}")
    for rank in range(2):
        saved = tmp_path / f"rank_{rank}" / "work" / "saved" / "net-1_7.ckpt"
        saved.parent.mkdir(parents=True)
        shutil.copy(CHECKPOINT, saved)
        when = folder.plan.stat().st_mtime - age
        os.utime(saved, (when, when))
    plan = plan_of(spec_of(workers=2, checkpoints="saved"))
    assert sorted(find_resume(plan, folder).files) == resumed


def test_a_job_resumes_from_what_it_saved_beside_its_script(tmp_path: Path) -> None:
    """A path from `__file__` leads into code/, which all ranks share."""
    folder = RunFolder(tmp_path)
    folder.plan.write_text("{}")
    for rank in range(2):
        saved = folder.code / "saved" / f"rank_{rank}" / "net-1_7.ckpt"
        saved.parent.mkdir(parents=True)
        shutil.copy(CHECKPOINT, saved)
        os.utime(saved, (folder.plan.stat().st_mtime + 60,) * 2)
    plan = plan_of(spec_of(workers=2, checkpoints="saved"))
    found = find_resume(plan, folder).files
    assert found == {rank: str(folder.code / "saved" / f"rank_{rank}" / "net-1_7.ckpt") for rank in range(2)}


@pytest.mark.parametrize("same", [True, False])
def test_a_job_that_lost_a_host_resumes_with_fewer_ranks_only_what_all_ranks_have(tmp_path: Path, same: bool) -> None:
    """Where the ranks' checkpoints differ, a rank that is left would lack the slices of the others."""
    hosts = (Host("a", "10.0.0.1", (0,)), Host("b", "10.0.0.2", (0,)))
    spec = spec_of(workers=2, checkpoints="saved", max_restarts=1, min_workers=1)
    plan = make_plan(spec, hosts, facts_of(hosts), 0, Reach("ssh"))
    folder = RunFolder(tmp_path)
    folder.plan.write_text("{}")
    source = CHECKPOINT.parent.parent
    for rank in range(2):
        place = folder.work(rank) / "saved"
        place.mkdir(parents=True)
        name = "rank_0/net0.ckpt" if same else f"rank_{rank}/net{rank}.ckpt"
        shutil.copyfile(source / name, place / "net-1_7.ckpt")
    verdict = Verdict(exit_code=125, cause="host lost", summary="b is lost")
    ended = replace(record.queued(plan, 0.0), state="failed", verdict=verdict)

    def replan(left: tuple[Host, ...], attempt: int, port: int) -> Plan:
        del port
        fewer = spec_of(workers=1, checkpoints="saved", max_restarts=1, min_workers=1)
        return make_plan(fewer, left, facts_of(left), attempt, Reach("ssh"))

    tools = RestartTools(lambda _: 9000, replan)
    again = prepare_next(plan, ended, folder, {"b"}, tools)
    if same:
        assert isinstance(again, NextAttempt)
        assert again.note.startswith("attempt 2 of 3 with 1 rank, without b in 5 s, resuming from net-1_7.ckpt")
    else:
        assert isinstance(again, str)
        assert again.startswith("1 ranks cannot resume what 2 ranks saved: their checkpoints differ (")
