"""Keeps the folders of runs up to date while their launchers run in pods, and deletes what has ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mslaunch.errors import ExitCode, MslaunchError
from mslaunch.shared import layout
from mslaunch.transports.kubernetes.api_server import JobObjects, NoAnswer, NotFound, part_of
from mslaunch.transports.kubernetes.endings import (
    OVER,
    blamed_host,
    concluded,
    describe_missing,
    read_record,
    with_starts,
)
from mslaunch.transports.kubernetes.mirror import TRANSPORT, Mirror, locked
from mslaunch.transports.kubernetes.states import (
    container_ending,
    ending_of,
    exit_code_of,
    first_ending,
    has_stopped,
    is_being_deleted,
    is_on_lost_node,
    is_over,
    is_signalled,
    phase_of_job,
)

_SILENCE = 90.0
"""Seconds after which a stream that says nothing is taken for broken."""
_WAITING_LINES = 10_000


class LogStream:
    """The lines of one pod's log, from now or some seconds ago on."""

    def __init__(self, cluster: JobObjects, pod: str, since: float | None) -> None:
        self.pod = pod
        self.has_ended = False
        self._cluster = cluster
        self._since = since
        self._lines: queue.Queue[bytes | MslaunchError | None] = queue.Queue(_WAITING_LINES)
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, name="mslaunch log", daemon=True).start()

    def read(self, quiet: float) -> Iterator[bytes]:
        """Yield lines until none comes for so many seconds, or the stream ends; raise what it broke off with."""
        while not self.has_ended:
            try:
                line = self._lines.get(timeout=quiet)
            except queue.Empty:
                return
            if isinstance(line, bytes):
                yield line
                continue
            self.has_ended = True
            if line is not None:
                raise line

    def close(self) -> None:
        """Read no more of it."""
        self.has_ended = True
        self._is_closed.set()

    def _run(self) -> None:
        end: MslaunchError | None = None
        try:
            for line in self._cluster.log(self.pod, _SILENCE, self._since):
                if not self._put(line):
                    return
        except MslaunchError as error:
            end = error
        self._put(end)

    def _put(self, item: bytes | MslaunchError | None) -> bool:
        """Hand something over; say whether somebody still reads."""
        while not self._is_closed.is_set():
            try:
                self._lines.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False


_PAUSE = 1.0
_STATUS_PATIENCE = 5.0
"""Seconds in which a pod's status follows the end of the pod."""
_NODE_PATIENCE = 75.0
"""Seconds in which Kubernetes notices a lost node: 40 or 50 by default, and up to 60 for the pods of a deleted one."""
_RETURN_PATIENCE = 15.0
"""Seconds in which the launcher's node may come back after Kubernetes has noticed that it is lost."""
_LOG_PATIENCE = 60.0
"""Seconds in which the log of a launcher that is over is asked for again."""
_QUIET = 10.0
"""How long a log may be silent before the pods are looked at again: a node may be lost."""
_EARLY_QUIET = 2.0
"""The same before the job begins, when workers may have ended or wait for something, and for a log that was busy."""
_OVERLAP = 15.0
"""Seconds of a log that are read again after a pause: a line may be on its way for a while."""
_LAST_LINES = 20
NO_WORD = "the launcher ended without a word."
NO_END = "the end of the log of the launcher's pod is missing: its node had rotated it, or had no room for it."

Pod = dict[str, Any]


class Following:
    """One run that is followed: read once at the start, then by a thread for as long as this process lives."""

    def __init__(self, folder: Path, cluster: JobObjects) -> None:
        self._folder = folder
        self._launcher_log = folder / layout.LAUNCHER_LOG
        self._cluster = cluster
        self.has_ended = False
        self._heard = ("", 0.0)
        """The pod whose log was read last, and when its last line came."""
        self._stream: LogStream | None = None
        self._lost_since: float | None = None
        """Since when the launcher's node is known to be lost, and nothing else of the job runs."""
        self._unread_since: float | None = None
        """Since when the log of a launcher that is over cannot be read."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(30)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with locked(self._folder) as mirror:
                if mirror is not None:
                    self._follow(mirror)
                    if mirror.final is not None:  # the objects were deleted before the end was seen
                        mirror.close(mirror.final)
        except OSError:
            return  # the folder is gone, or the disk is full
        finally:
            self._drop_stream()
            self._ready.set()

    def _follow(self, mirror: Mirror) -> None:
        """Read the log so far, then follow it; a stream or a server that is lost is tried again."""
        follow = False
        while True:
            try:
                if self._look(mirror, follow):
                    return
            except NotFound:
                return
            except MslaunchError:
                pass  # the API server cannot be reached: the job goes on without it
            self._ready.set()
            if follow:
                time.sleep(_PAUSE)
            follow = True

    def settle(self, seconds: float) -> None:
        """Wait until the end of the run is recorded, by this process or by another one."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.has_ended:
            with suppress(OSError):
                record = read_record((self._folder / layout.RECORD).read_bytes()) or {}
                if record.get("state") in OVER:
                    return
            time.sleep(0.1)

    def _look(self, mirror: Mirror, follow: bool) -> bool:
        """Read what the launcher has written; say whether the run is over, and recorded."""
        launcher = _launcher(self._cluster.pods())
        if launcher is None:
            phase = phase_of_job(self._cluster.root())  # raises NotFound where the job was deleted
            return bool(phase) and self._finish(mirror, None, 0 if phase == "Succeeded" else 1)
        if (launcher.get("status") or {}).get("phase") in (None, "Pending"):
            return False
        was_over = is_over(launcher)
        is_whole = is_on_lost_node(launcher) or self._read(mirror, launcher, follow and not was_over)
        pods = self._cluster.pods()  # reading took its time
        launcher = _launcher(pods) or launcher
        if mirror.exit_code is not None:
            return self._finish(mirror, launcher, mirror.exit_code)
        if is_over(launcher):  # what it has written since it was read is read first
            return was_over and is_whole and self._finish(mirror, launcher, exit_code_of(launcher))
        workers = [pod for pod in pods if part_of(pod) == "worker"]
        if self._is_lost(mirror, launcher, workers):
            return self._close(
                mirror, ExitCode.LOST, first_ending([launcher], launcher["metadata"]["name"], is_lost=True)
            )
        failed = [pod for pod in workers if (pod.get("status") or {}).get("phase") == "Failed"]
        return bool(failed) and all(map(is_over, workers)) and self._never_began(mirror, failed)

    def _is_lost(self, mirror: Mirror, launcher: Pod, workers: list[Pod]) -> bool:
        """Tell whether the launcher's node is lost for some time, and no worker goes on elsewhere."""
        is_alone = all(has_stopped(pod) or is_being_deleted(pod) for pod in workers)
        has_begun = self._record(mirror).get("state") != "queued"  # until then workers wait for a launcher in vain
        if not is_on_lost_node(launcher) or (has_begun and not is_alone):
            self._lost_since = None
            return False
        self._lost_since = self._lost_since or time.monotonic()
        return time.monotonic() - self._lost_since > _RETURN_PATIENCE

    def _read(self, mirror: Mirror, launcher: Pod, follow: bool) -> bool:
        """Read the launcher's log from where this process has left off and some before, else from its beginning.

        Say whether it was read to its end, as far as it is there.
        """
        pod = launcher["metadata"]["name"]
        is_early = self._record(mirror).get("state") == "queued" or time.monotonic() - self._heard[1] < _QUIET
        try:
            is_cut = self._read_stream(mirror, pod, _EARLY_QUIET if is_early else _QUIET, follow)
            if not is_cut and mirror.exit_code is None:
                before = mirror.number
                is_cut = self._read_rest(mirror, pod)
                if mirror.number > before:
                    self._drop_stream()  # it has stopped at a rotation: a kubelet of 1.20 does so now and then
        except NoAnswer as error:
            self._drop_stream()
            if not is_over(launcher) or not self._is_given_up():
                raise
            mirror.note(str(error))
            return True
        self._unread_since = None
        if is_cut:
            self._drop_stream()
            self._heard = ("", 0.0)
        return not is_cut

    def _read_stream(self, mirror: Mirror, pod: str, quiet: float, follow: bool) -> bool:
        """Read from the stream that is open, else open one to follow the log; say whether something is missing."""
        stream, is_whole = self._stream, False
        if stream is None or stream.has_ended or stream.pod != pod:
            if not follow:
                return False
            since = self._seconds_since(pod)
            stream, is_whole = LogStream(self._cluster, pod, since), since is None
            self._stream = stream
        return mirror.feed(pod, self._heard_lines(pod, stream.read(quiet)), is_whole)

    def _read_rest(self, mirror: Mirror, pod: str) -> bool:
        """Read what is there without waiting for more; say whether something before it is missing."""
        since = self._seconds_since(pod)
        return mirror.feed(pod, self._heard_lines(pod, self._cluster.log(pod, since=since)), since is None)

    def _seconds_since(self, pod: str) -> float | None:
        """How far back to read a pod's log to go on; None for its beginning."""
        return time.monotonic() - self._heard[1] + _OVERLAP if self._heard[0] == pod else None

    def _heard_lines(self, pod: str, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._heard = (pod, time.monotonic())
            yield line

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _is_given_up(self) -> bool:
        """Tell whether the log of a launcher that is over was asked for long enough."""
        self._unread_since = self._unread_since or time.monotonic()
        return time.monotonic() - self._unread_since > _LOG_PATIENCE

    def _never_began(self, mirror: Mirror, failed: list[Pod]) -> bool:
        """Record the failure of a job for whose workers the launcher would wait in vain; say whether it is one."""
        if self._record(mirror).get("state") != "queued":
            return False
        ending = first_ending(failed, "", is_lost=False) or self._early_ending(failed[0])
        return self._close(mirror, exit_code_of(failed[0]), ending)

    def _early_ending(self, pod: Pod) -> dict[str, Any]:
        """The verdict for a pod that ended before the job began: what it printed last."""
        name, code = pod["metadata"]["name"], exit_code_of(pod)
        last = "no word"
        with suppress(NoAnswer):
            *_, last = [last, *(line.decode(errors="replace") for line in self._cluster.log(name) if line)]
        summary = f"pod {name} ended with code {code} before the job began: {last[:300]}"
        return {"cause": TRANSPORT, "host": name, "summary": summary, "exit_code": code}

    def _finish(self, mirror: Mirror, launcher: Pod | None, code: int) -> bool:
        """Record how the run ended, with what Kubernetes knows of it, and delete its objects."""
        record, ending = self._record(mirror), None
        is_killed = record.get("state") not in OVER and is_signalled(code)
        if launcher is not None and ending_of(launcher):
            ending = first_ending([launcher], "", is_lost=False)
        elif launcher is not None and is_killed:
            ending = container_ending(launcher, code)
        elif launcher is not None and code != 0 and not self._launcher_log.exists():
            ending = self._early_ending(launcher)
        elif code != 0 and record.get("state") != "stopped":
            with suppress(NotFound, MslaunchError):
                ending = self._settled_ending(*blamed_host(record))
        if ending is None and launcher is not None and mirror.exit_code is None and code < 128:
            mirror.note(NO_END)  # a launcher that ends by itself writes an end
        return self._close(mirror, code, ending)

    def _record(self, mirror: Mirror) -> dict[str, Any]:
        return mirror.final or read_record((self._folder / layout.RECORD).read_bytes()) or {}

    def _record_with_starts(self, mirror: Mirror) -> dict[str, Any]:
        """The last record that came; its launcher may have been ended before it could record that ranks had started."""
        record = self._record(mirror)
        with suppress(OSError), (self._folder / layout.EVENTS).open("rb") as events:
            return with_starts(record, events)
        return record

    def _close(self, mirror: Mirror, code: int, ending: dict[str, Any] | None) -> bool:
        """Write the record; delete the objects, unless there is something left to read."""
        record = concluded(self._record_with_starts(mirror), code, ending, self._last_lines())
        if note := describe_missing(mirror.missing()):
            mirror.note(note)
            record["notes"] = [*(record.get("notes") or ()), note]
        mirror.close(record)
        self.has_ended = True
        if self._unread_since is None:
            with suppress(NotFound, MslaunchError):
                self._cluster.delete()
        self._ready.set()  # not before: a command that only looks ends then
        return True

    def _settled_ending(self, host: str, is_lost: bool) -> dict[str, Any] | None:
        """Why Kubernetes ended a pod, once it knows: that a node is lost it notices after the launcher."""
        until = time.monotonic() + (_NODE_PATIENCE if is_lost else _STATUS_PATIENCE)
        while True:
            pods = self._cluster.pods(patience=20)
            is_late = time.monotonic() > until
            ending = first_ending(pods, host, is_lost, is_late)
            unsettled = [pod for pod in pods if not is_over(pod) and part_of(pod) == "worker"]
            if ending is not None or not unsettled or is_late:
                return ending
            time.sleep(_PAUSE)

    def _last_lines(self) -> str:
        with suppress(OSError):
            lines = self._launcher_log.read_text(errors="replace").splitlines()
            told = [line.removeprefix("mslaunch: ") for line in lines[-_LAST_LINES:]]
            return "\n".join(told) or NO_WORD
        return NO_WORD


def _launcher(pods: list[Pod]) -> Pod | None:
    return next((pod for pod in pods if part_of(pod) == "launcher"), None)
