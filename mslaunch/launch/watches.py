"""What the clock says about a story: time limits, ranks that do not join or end too early, hangs. Pure."""

from __future__ import annotations

from mslaunch.launch.story import TIME_IS_UP, Failure, Order, Story
from mslaunch.plan.ranges import format_ranges

JOIN_NOTICE = 60.0
SKEW_NOTICE = 1.0  # ranks of a healthy job do not end in the same millisecond


class Watches:
    """Looks at a story from time to time."""

    def __init__(self, story: Story, job_began: float | None = None) -> None:
        self.story = story
        self._job_began = story.began if job_began is None else job_began
        self._join_noticed = self._skew_noticed = False
        self._checks = (self._time_limit, self._exit_skew, self._join, self._stall)

    def look(self, now: float) -> list[Order]:
        """Return what has to be done by now."""
        if self.story.stopping or not self.story.running:
            return []
        return [order for check in self._checks for order in check(now)]

    def _time_limit(self, now: float) -> list[Order]:
        limit = self.story.plan.limits.timeout
        if limit is None or now - self._job_began < limit:
            return []
        return self._fail(now, "timeout", f"the job took longer than {limit:g} s (launch.timeout)")

    def _exit_skew(self, now: float) -> list[Order]:
        if self.story.first_end is None:
            return []
        when, rank = self.story.first_end
        skew = self.story.plan.limits.exit_skew
        if now - when >= SKEW_NOTICE and not self._skew_noticed:
            self._skew_noticed = True
            others = format_ranges(self.story.running)
            note = f"rank {rank} has ended with code 0; rank {others} may go on for {skew:g} s (launch.exit_skew)"
            self.story.notes.append(note)
        if now - when < skew:
            return []
        going_on = format_ranges(self.story.running)
        return self._fail(
            now, "exit skew", f"rank {rank} ended with code 0, and rank {going_on} still ran {skew:g} s later"
        )

    def _join(self, now: float) -> list[Order]:
        """Name the ranks that others wait for in init()."""
        story = self.story
        if self._join_noticed or not story.joining or now - min(story.joining.values()) < JOIN_NOTICE:
            return []
        self._join_noticed = True
        missing = [rank for rank in story.running if rank not in story.joining and rank not in story.joined]
        if missing:
            who = (
                f"rank{'s' if len(missing) > 1 else ''} {format_ranges(missing)} ha{'ve' if len(missing) > 1 else 's'}"
            )
            story.notes.append(f"{who} not joined after {JOIN_NOTICE:.0f} s; the others wait in init()")
        else:
            story.notes.append(f"all ranks are in init(), which has not returned after {JOIN_NOTICE:.0f} s")
        return []

    def _stall(self, now: float) -> list[Order]:
        """A hang is judged by the agents' last word on output, not by how long ago that came."""
        del now
        limit = self.story.plan.limits.stall_timeout
        quiet_since = self.story.last_output
        if limit is None or self.story.stalled or quiet_since is None or self.story.pulse - quiet_since < limit:
            return []
        return self.story.ask_for_stacks(stalled=True)

    def _fail(self, now: float, cause: str, summary: str) -> list[Order]:
        host = self.story.plan.hosts[0].name
        return self.story.fail(Failure(now, None, host, TIME_IS_UP, None, cause, summary))
