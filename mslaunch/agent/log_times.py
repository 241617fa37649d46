"""When the lines of a log came: log.times beside it, pairs of a time and how many bytes the log had then."""

from __future__ import annotations

import os

from mslaunch.shared import layout

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms

if TYPE_CHECKING:
    from mslaunch.agent.output import Output


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
        self._growing: dict[str, _Log] = {}
        self._looked = 0.0
        self._looked_at_all = 0.0

    @property
    def is_growing(self) -> bool:
        return bool(self._growing)

    def begin(self, logs: list[str]) -> None:
        """Take the logs of an attempt, none of which has been written to."""
        self._logs = {path: _Log(path) for path in logs}
        self._growing = dict(self._logs)

    def look(self, now: float) -> None:
        """Look at what it is time to look at."""
        if now - self._looked_at_all >= ALL_EVERY:
            self.look_at_all(now)
        elif self._growing and now - self._looked >= max(EVERY, len(self._growing) / MOST_LOOKS):
            self._looked = now
            for log in list(self._growing.values()):
                self._look_at(log)

    def look_at_all(self, now: float) -> float:
        """Look at all logs, write down what is known by now, and return when the last of them was written to."""
        self._looked = self._looked_at_all = now
        written = max(map(self._look_at, self._logs.values()), default=0.0)
        for log in self._logs.values():
            _save(log)
        return written

    def finish(self, path: str) -> None:
        """Write down where a log ends, now that its rank has ended."""
        log = self._logs.get(path)
        if log is not None:
            self._look_at(log, is_last=True)
            self._growing.pop(path, None)
            _save(log)

    def _look_at(self, log: _Log, is_last: bool = False) -> float:
        """Note how long a log is, where it has grown, and return when it was written to: the file itself knows that."""
        try:
            found = os.stat(log.path)
        except OSError:  # not there yet
            return 0.0
        if found.st_size == log.size:
            log.quiet += 1
            if log.quiet >= QUIET_LOOKS:
                self._growing.pop(log.path, None)
            return found.st_mtime
        self._growing[log.path] = log
        log.quiet = 0
        if is_last or log.pairs < MANY_PAIRS or found.st_mtime - log.time >= SPARSE:
            log.size, log.time = found.st_size, found.st_mtime
            log.pairs += 1
            log.unsaved.append(f"{found.st_mtime:.3f} {found.st_size}\n")
        return found.st_mtime


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


def put_aside(logs: list[str], attempt: int, output: Output) -> None:
    """Rename the logs, and the other files of an attempt beside them; the first attempt has nothing before it."""
    for path in logs if attempt else ():
        folder, log = os.path.split(path)
        for name in dict.fromkeys((log, *layout.ATTEMPT_FILES)):  # a script's log has a name of its own
            earlier = layout.earlier_name(name, attempt - 1)
            try:
                os.rename(os.path.join(folder, name), os.path.join(folder, earlier))
            except FileNotFoundError:
                pass
            except OSError as error:
                output.event("agent-note", text=f"output of the attempt before is not put aside: {error}")
                return
