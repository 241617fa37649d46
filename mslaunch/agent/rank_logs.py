"""The logs of the ranks: what of them is shown, and when their lines came.

log.times, beside each log, has pairs of a time and how many bytes the log had then.
"""

from __future__ import annotations

import os
import time

from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.shared import layout
from mslaunch.shared.follow import Follower, ShownFollower

EVERY = 0.1  # seconds between two looks at a log that grows
ALL_EVERY = 2.0  # seconds between two looks at all logs
QUIET_LOOKS = 20  # after so many looks without growth a log counts as quiet
MOST_LOOKS = 10_000  # a second; with more logs that grow, each is looked at less often
MANY_PAIRS = 36_000  # an hour of steady growth; from then on a pair a second is enough
SPARSE = 1.0


class _Log:
    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.time = 0.0
        self.quiet = 0
        self.pairs = 0
        self.unsaved: list[str] = []


class LogTimes:
    """Looks at the logs of all ranks; a log that does not grow costs one look in a while."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self.growing: dict[str, _Log] = {}
        self._looked = 0.0
        self._looked_at_all = 0.0
        self._written = 0.0
        self._written_seen = time.monotonic()

    def begin(self, logs: list[str]) -> None:
        """Take the logs of an attempt, none of which has been written to."""
        self._logs = {path: _Log(path) for path in logs}
        self.growing = dict(self._logs)
        self._written_seen = time.monotonic()

    def look(self, now: float) -> None:
        if now - self._looked_at_all >= ALL_EVERY:
            self.look_at_all(now)
        elif self.growing and now - self._looked >= max(EVERY, len(self.growing) / MOST_LOOKS):
            self._looked = now
            for log in list(self.growing.values()):
                self._look_at(log)

    def look_at_all(self, now: float) -> None:
        """Look at all logs, and write down what is known by now."""
        self._looked = self._looked_at_all = now
        written = max(map(self._look_at, self._logs.values()), default=0.0)
        for log in self._logs.values():
            _save(log)
        if written != self._written:
            self._written, self._written_seen = written, now

    def seconds_quiet(self, now: float) -> float:
        """Return for how long no log has been written to, by a clock that nobody sets."""
        self.look_at_all(now)
        return now - self._written_seen

    def finish(self, path: str) -> None:
        """Write down where a log ends, now that its rank has ended."""
        log = self._logs.get(path)
        if log is not None:
            self._look_at(log, is_last=True)
            self.growing.pop(path, None)
            _save(log)

    def _look_at(self, log: _Log, is_last: bool = False) -> float:
        """Note how long a log is, where it has grown, and return when it was written to: the file itself knows that."""
        try:
            stat = os.stat(log.path)
        except OSError:  # not there yet
            return 0.0
        if stat.st_size == log.size:
            log.quiet += 1
            if log.quiet >= QUIET_LOOKS:
                self.growing.pop(log.path, None)
            return stat.st_mtime
        self.growing[log.path] = log
        log.quiet = 0
        if is_last or log.pairs < MANY_PAIRS or stat.st_mtime - log.time >= SPARSE:
            log.size, log.time = stat.st_size, stat.st_mtime
            log.pairs += 1
            log.unsaved.append(f"{stat.st_mtime:.3f} {stat.st_size}\n")
        return stat.st_mtime


def _save(log: _Log) -> None:
    if not log.unsaved:
        return
    path = os.path.join(os.path.dirname(log.path), layout.TIMES)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, "".join(log.unsaved).encode())
        finally:
            os.close(file)
    except OSError:
        pass  # a full disk: lines without a time
    log.unsaved.clear()


def put_aside(logs: list[str], attempt: int, output: LauncherStream) -> None:
    """Rename the logs, and the other files of an attempt beside them; the first attempt has nothing before it."""
    if attempt == 0:
        return
    for path in logs:
        folder, log = os.path.split(path)
        for name in dict.fromkeys((log, *layout.ATTEMPT_FILES)):  # a script's log has a name of its own
            earlier = layout.earlier_name(name, attempt - 1)
            try:
                os.rename(os.path.join(folder, name), os.path.join(folder, earlier))
            except FileNotFoundError:
                pass
            except OSError as error:
                output.note(f"output of the attempt before is not put aside: {error}")
                return


LAST_LINES = 1 << 16  # how much of a log is still shown when a job ends far behind
FAR_BEHIND = 1 << 20
MOST_QUEUED = 1 << 24  # last lines of logs are left to the file while this much waits for the launcher
BAR_EVERY = 0.25  # seconds between two states of a rank's progress bar


class ShownLogs:
    """Follows the logs of some ranks."""

    def __init__(self, output: LauncherStream) -> None:
        self._output = output
        self.followers: dict[int, Follower] = {}
        self._bars: dict[int, tuple[float, str]] = {}
        self._turn = 0

    def clear(self) -> None:
        self.followers.clear()
        self._bars.clear()

    def add(self, rank: int, log: str, raw: bool = False) -> None:
        """Follow a log; `raw`: show it as it is written, also the beginning of a line."""
        self.followers[rank] = Follower(log) if raw else ShownFollower(log)

    def follow(self) -> bool:
        """Send what is new; return whether there may be more at once."""
        more = False
        self._turn += 1
        ranks = list(self.followers)
        for index in range(len(ranks)):
            rank = ranks[(index + self._turn) % len(ranks)]  # in turns, or a chatty one would starve the others
            follower = self.followers[rank]
            if self._output.has_room:
                lines = follower.read()
                if isinstance(follower, ShownFollower):
                    self._send(rank, lines, follower.bar())
                else:
                    self._output.text(rank, lines, follower.rest())
                more = more or follower.behind() > 0
        return more

    def _send(self, rank: int, lines: list[str], text: str) -> None:
        if lines:
            self._output.lines(rank, lines)
            self._bars.pop(rank, None)  # a line that has ended takes the place of its progress bar
        sent, before = self._bars.get(rank, (0.0, ""))
        now = time.monotonic()
        if text and text != before and now - sent >= BAR_EVERY:
            self._bars[rank] = (now, text)
            self._output.event("bar", rank=rank, text=text)

    def finish(self, rank: int) -> None:
        """Send what a log holds now, in bounds; the file keeps the rest."""
        follower = self.followers.pop(rank, None)
        if follower is None:
            return
        passed, lines = follower.finish(FAR_BEHIND if self._output.waiting < MOST_QUEUED else 0, LAST_LINES)
        if passed:
            lines.insert(0, f"... {passed / 1e6:.1f} MB not shown here: {follower.path}")
        if isinstance(follower, ShownFollower):
            self._send(rank, lines, "")
        else:
            self._output.text(rank, lines, [])
        self._output.flush()
