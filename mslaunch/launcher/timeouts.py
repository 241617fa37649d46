"""Time limits of an attempt, ranks that do not join or end too early, hangs. Pure."""

from __future__ import annotations

from mslaunch.launcher.run_state import TIME_IS_UP, Failure, Order, RunState
from mslaunch.ranges import format_ranges
from mslaunch.words import named_ranks

JOIN_NOTICE = 60.0
SKEW_NOTICE = 1.0  # ranks of a healthy job do not end in the same millisecond


class Timeouts:
    """Checks the time limits of an attempt."""

    def __init__(self, run_state: RunState, job_began: float | None = None) -> None:
        self.run_state = run_state
        self._job_began = run_state.began if job_began is None else job_began
        self._join_noticed = self._skew_noticed = False
        self._wall = 0.0
        self._checks = (self._time_limit, self._exit_skew, self._join, self._stall)

    def check(self, now: float, wall: float) -> list[Order]:
        """Return what has to be done by now. Limits go by a clock that only runs forward; `wall` is for the record."""
        self._wall = wall
        if self.run_state.stopping or not self.run_state.running:
            return []
        return [order for check in self._checks for order in check(now)]

    def _time_limit(self, now: float) -> list[Order]:
        limit = self.run_state.plan.limits.timeout
        if limit is None or now - self._job_began < limit:
            return []
        return self._fail("timeout", f"the job took longer than {limit:g} s (launch.timeout)")

    def _exit_skew(self, now: float) -> list[Order]:
        if self.run_state.first_end is None:
            return []
        when, rank = self.run_state.first_end
        when = max(when, self.run_state.last_start)  # a thousand ranks are not started at once
        skew = self.run_state.plan.limits.exit_skew
        if now - when >= SKEW_NOTICE and not self._skew_noticed:
            self._skew_noticed = True
            others = format_ranges(self.run_state.running)
            note = f"rank {rank} has ended with code 0; rank {others} may go on for {skew:g} s (launch.exit_skew)"
            self.run_state.notes.append(note)
        if now - when < skew:
            return []
        going_on = format_ranges(self.run_state.running)
        return self._fail("exit skew", f"rank {rank} ended with code 0, and rank {going_on} still ran {skew:g} s later")

    def _join(self, now: float) -> list[Order]:
        """Name the ranks that others wait for in init()."""
        run_state = self.run_state
        if self._join_noticed or not run_state.joining or now - min(run_state.joining.values()) < JOIN_NOTICE:
            return []
        self._join_noticed = True
        missing = [rank for rank in run_state.running if rank not in run_state.joining and rank not in run_state.joined]
        if missing:
            have = "have" if len(missing) > 1 else "has"
            run_state.notes.append(
                f"{named_ranks(missing)} {have} not joined after {JOIN_NOTICE:.0f} s; the others wait in init()"
            )
        else:
            run_state.notes.append(f"all ranks are in init(), which has not returned after {JOIN_NOTICE:.0f} s")
        return []

    def _stall(self, now: float) -> list[Order]:
        """A hang is judged by the agents' last word on output, not by how long ago that came."""
        del now
        limit = self.run_state.plan.limits.stall_timeout
        quiet_since = self.run_state.last_output
        if limit is None or self.run_state.stalled or quiet_since is None or self.run_state.pulse - quiet_since < limit:
            return []
        return self.run_state.ask_for_stacks(stalled=True)

    def _fail(self, cause: str, summary: str) -> list[Order]:
        host = self.run_state.plan.hosts[0].name
        return self.run_state.fail(Failure(self._wall, None, host, TIME_IS_UP, None, cause, summary))
