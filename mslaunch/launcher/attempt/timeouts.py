"""Time limits of an attempt, ranks that do not join or end too early, hangs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mslaunch.errors import ExitCode
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.text import named_ranks

JOIN_NOTICE = 60.0
ABSENT_NOTICE = 2.0  # what a rank said before it ended may come a moment after its end
SKEW_LOOK = 1.0  # ranks of a healthy job do not end in the same millisecond
SKEW_NOTICE = 30.0  # rank 0 of a healthy job may save a checkpoint, which is nothing to tell
LOOKS = 2  # at the stacks, once the time of the job is up
LOOK_PAUSE = 1.0
LOOKS_SECONDS = 10.0  # what both may take together
SKEW_SHARE = 0.1  # of launch.exit_skew, where that is sooner


class Timeouts:
    """Checks the time limits of an attempt."""

    def __init__(self, run_state: RunState, job_began: float = 0.0) -> None:
        self.run_state = run_state
        self._job_began = job_began
        self._join_noticed = self._absent_noticed = False
        self._skew_looked = self._skew_noticed = self._silence_noticed = False
        self._wall = 0.0
        self._looks_begun = 0
        self._look_at = 0.0

    def check(self, now: float, wall: float) -> list[Order]:
        """Return what has to be done by now. Limits go by a clock that only runs forward; `wall` is for the record."""
        self._wall = wall
        run_state, limits = self.run_state, self.run_state.plan.limits
        if run_state.ending.stopping or not run_state.ranks.running:
            return []
        orders: list[Order] = []
        if limits.timeout is not None and now - self._job_began >= limits.timeout:
            orders += self._time_limit(now, limits.timeout)
        if run_state.activity.first_end is not None:
            orders += self._exit_skew(now, *run_state.activity.first_end)
        if run_state.joining.waiting:
            self._report_joining(now)
        is_stalled = limits.stall_timeout is not None and run_state.activity.quiet_seconds() >= limits.stall_timeout
        if is_stalled and run_state.stacks.purpose != "stall":
            orders += run_state.ask_for_stacks("stall")
        return orders + run_state.report_alerts(run_state.numbers.alerts.check(wall), wall)

    def _time_limit(self, now: float, limit: float) -> list[Order]:
        summary = f"the job took longer than {limit:g} s (launch.timeout)"
        if self.run_state.joining.hopeless_since() is not None:
            return self._fail("timeout", summary)
        if now - self._job_began < limit + LOOKS_SECONDS and len(self.run_state.stacks.last_looks) < LOOKS:
            return self._look(now)
        return self._fail_after_looks(summary)

    def _look(self, now: float) -> list[Order]:
        """Have the stacks taken, twice with a pause: ranks that stand still hang, others are only late."""
        if len(self.run_state.stacks.last_looks) < self._looks_begun or now < self._look_at:
            return []
        self._looks_begun += 1
        self._look_at = now + LOOK_PAUSE
        return self.run_state.ask_for_stacks("timeout")

    def _fail_after_looks(self, summary: str) -> list[Order]:
        """End the job, with where its ranks stood; one is to blame only where none has moved between two looks."""
        looks = self.run_state.stacks.last_looks
        if not looks:
            return self._fail("timeout", summary)
        summary = "; ".join([summary, *(group.words() for group in looks[-1])])
        if len(looks) == LOOKS and looks[0] == looks[-1]:
            return self.run_state.fail_by_stacks(looks[-1], self._wall, "timeout", summary)
        return self._fail("timeout", summary)

    def _exit_skew(self, now: float, when: float, rank: int) -> list[Order]:
        """After one rank has ended well, the others must print or compute; all silent and idle, they hang."""
        run_state, activity = self.run_state, self.run_state.activity
        when = max(when, activity.last_start)  # a thousand ranks are not started at once
        skew = run_state.plan.limits.exit_skew
        others = named_ranks(run_state.ranks.running)
        if now - when >= max(SKEW_LOOK, min(SKEW_NOTICE, SKEW_SHARE * skew)) and not self._skew_noticed:
            self._skew_noticed = True
            limit = f"silence without computing counts as a hang after {skew:g} s (launch.exit_skew)"
            run_state.notes.append(f"rank {rank} has ended with code 0; {others} may go on; {limit}")
        if now - when >= SKEW_LOOK and not self._skew_looked:
            self._skew_looked = True
            return [Order("activity")]
        hopeless = run_state.joining.hopeless_since()
        if hopeless is not None and now - hopeless >= skew:
            return self._fail("exit skew", f"they still waited {skew:g} s later (launch.exit_skew)")
        if self._least(activity.idle) >= skew:
            what = f"{others} neither printed nor computed anything for {skew:g} s after that (launch.exit_skew)"
            return self._fail("exit skew", f"rank {rank} ended with code 0, and {what}")
        if self._least(activity.silent) >= skew and not self._silence_noticed:
            self._silence_noticed = True
            what = f"{others} use CPU time and have printed nothing for {skew:g} s"
            run_state.notes.append(f"rank {rank} has ended with code 0; {what}; launch.stall_timeout ends such a job")
        return []

    def _least(self, seconds: Mapping[int, float]) -> float:
        """The least of all running ranks; ranks that wait for one that computes are no hang."""
        return min(seconds.get(rank, 0.0) for rank in self.run_state.ranks.running)

    def _report_joining(self, now: float) -> None:
        """Name the ranks that others wait for in init()."""
        run_state, joining = self.run_state, self.run_state.joining
        since = joining.hopeless_since()
        if since is not None:
            if now - since >= ABSENT_NOTICE and not self._absent_noticed:
                self._absent_noticed = True
                run_state.notes.append(joining.describe_absent())
        elif not self._join_noticed and now - min(joining.waiting.values()) >= JOIN_NOTICE:
            self._join_noticed = True
            run_state.notes.append(joining.describe_missing(run_state.ranks.running, JOIN_NOTICE))

    def _fail(self, cause: str, summary: str) -> list[Order]:
        """End the job; a rank that others wait for in vain is the one to blame."""
        run_state, joining = self.run_state, self.run_state.joining
        if joining.hopeless_since() is None:
            return run_state.fail_host(run_state.hosts.names[0], self._wall, ExitCode.TIME_IS_UP, cause, summary)
        summary = f"{joining.describe_absent()}; {summary}"
        return run_state.fail_rank(self._wall, min(joining.absent), ExitCode.TIME_IS_UP, None, cause, summary)
