"""Keeps the folders of runs up to date while their launchers run in pods, and deletes what has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mslaunch.errors import ExitCode, MslaunchError
from mslaunch.shared import layout
from mslaunch.transports.kubernetes import pod_states
from mslaunch.transports.kubernetes.api_server import JobObjects, NoAnswer, NotFound, part_of
from mslaunch.transports.kubernetes.mirror import TRANSPORT, Mirror, locked

_PAUSE = 1.0
_STATUS_PATIENCE = 15.0
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
        self._lost_since: float | None = None
        """Since when the launcher's node is known to be lost, and nothing else of the job runs."""
        self._unread_since: float | None = None
        """Since when the log of a launcher that is over cannot be read."""
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._ready.wait(30)

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
                record = pod_states.read_record((self._folder / layout.RECORD).read_bytes()) or {}
                if record.get("state") in pod_states.OVER:
                    return
            time.sleep(0.1)

    def _look(self, mirror: Mirror, follow: bool) -> bool:
        """Read what the launcher has written; say whether the run is over, and recorded."""
        launcher = _launcher(self._cluster.pods())
        if launcher is None:
            phase = pod_states.phase_of_job(self._cluster.root())  # raises NotFound where the job was deleted
            return bool(phase) and self._finish(mirror, None, 0 if phase == "Succeeded" else 1)
        if (launcher.get("status") or {}).get("phase") in (None, "Pending"):
            return False
        was_over = pod_states.is_over(launcher)
        is_whole = pod_states.is_on_lost_node(launcher) or self._read(mirror, launcher, follow and not was_over)
        pods = self._cluster.pods()  # reading took its time
        launcher = _launcher(pods) or launcher
        if mirror.exit_code is not None:
            return self._finish(mirror, launcher, mirror.exit_code)
        if pod_states.is_over(launcher):  # what it has written since it was read is read first
            return was_over and is_whole and self._finish(mirror, launcher, pod_states.exit_code_of(launcher))
        workers = [pod for pod in pods if part_of(pod) == "worker"]
        failed = [pod for pod in workers if (pod.get("status") or {}).get("phase") == "Failed"]
        if self._is_lost(mirror, launcher, workers):
            code = int(ExitCode.LOST)
            ending = pod_states.first_ending([launcher], launcher["metadata"]["name"], is_lost=True)
        elif failed and all(map(pod_states.is_over, workers)) and self._record(mirror).get("state") == "queued":
            # The launcher would wait in vain for its workers.
            code = pod_states.exit_code_of(failed[0])
            ending = pod_states.first_ending(failed, "", is_lost=False) or self._early_ending(failed[0])
        else:
            return False
        return self._close(mirror, code, ending)

    def _is_lost(self, mirror: Mirror, launcher: Pod, workers: list[Pod]) -> bool:
        """Tell whether the launcher's node is lost for some time, and no worker goes on elsewhere."""
        is_alone = all(pod_states.has_stopped(pod) or pod_states.is_being_deleted(pod) for pod in workers)
        has_begun = self._record(mirror).get("state") != "queued"  # until then workers wait for a launcher in vain
        if not pod_states.is_on_lost_node(launcher) or (has_begun and not is_alone):
            self._lost_since = None
            return False
        self._lost_since = self._lost_since or time.monotonic()
        return time.monotonic() - self._lost_since > _RETURN_PATIENCE

    def _read(self, mirror: Mirror, launcher: Pod, follow: bool) -> bool:
        """Read the launcher's log from where this process left off and some before; say whether to its end."""
        pod, now = launcher["metadata"]["name"], time.monotonic()
        quiet, since = 0.0, None
        if follow:
            is_early = self._record(mirror).get("state") == "queued" or now - self._heard[1] < _QUIET
            quiet = _EARLY_QUIET if is_early else _QUIET
        if self._heard[0] == pod:
            since = now - self._heard[1] + _OVERLAP
        try:
            is_cut = mirror.feed(pod, self._heard_lines(pod, self._cluster.log(pod, quiet, since)), since is None)
        except NoAnswer as error:
            if not pod_states.is_over(launcher):
                raise
            self._unread_since = self._unread_since or now
            if now - self._unread_since <= _LOG_PATIENCE:
                raise
            mirror.note(str(error))
            return True
        self._unread_since = None
        if is_cut:
            self._heard = ("", 0.0)
        return not is_cut

    def _heard_lines(self, pod: str, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._heard = (pod, time.monotonic())
            yield line

    def _early_ending(self, pod: Pod) -> dict[str, Any]:
        """The verdict for a pod that ended before the job began: what it printed last."""
        name, code = pod["metadata"]["name"], pod_states.exit_code_of(pod)
        last = "no word"
        with suppress(NoAnswer):
            *_, last = [last, *(line.decode(errors="replace") for line in self._cluster.log(name) if line)]
        summary = f"pod {name} ended with code {code} before the job began: {last[:300]}"
        return {"cause": TRANSPORT, "host": name, "summary": summary, "exit_code": code}

    def _finish(self, mirror: Mirror, launcher: Pod | None, code: int) -> bool:
        """Record how the run ended, with what Kubernetes knows of it, and delete its objects."""
        record, ending = self._record(mirror), None
        is_killed = record.get("state") not in pod_states.OVER and pod_states.is_signalled(code)
        if launcher is not None and pod_states.ending_of(launcher):
            ending = pod_states.first_ending([launcher], "", is_lost=False)
        elif launcher is not None and is_killed:
            ending = pod_states.container_ending(launcher, code)
        elif launcher is not None and code != 0 and not self._launcher_log.exists():
            ending = self._early_ending(launcher)
        elif code != 0 and record.get("state") != "stopped":
            with suppress(NotFound, MslaunchError):
                ending = self._settled_ending(*pod_states.blamed_host(record))
        if ending is None and launcher is not None and mirror.exit_code is None and code < 128:
            mirror.note(NO_END)  # a launcher that ends by itself writes an end
        return self._close(mirror, code, ending)

    def _record(self, mirror: Mirror) -> dict[str, Any]:
        return mirror.final or pod_states.read_record((self._folder / layout.RECORD).read_bytes()) or {}

    def _close(self, mirror: Mirror, code: int, ending: dict[str, Any] | None) -> bool:
        """Write the record; delete the objects, unless there is something left to read."""
        record = self._record(mirror)
        with suppress(OSError), (self._folder / layout.EVENTS).open("rb") as events:
            record = pod_states.with_starts(record, events)  # its launcher may have ended before it could record them
        record = pod_states.concluded(record, code, ending, self._last_lines())
        if note := pod_states.describe_missing(mirror.missing()):
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
            ending = pod_states.first_ending(pods, host, is_lost, is_late)
            unsettled = [pod for pod in pods if not pod_states.is_over(pod) and part_of(pod) == "worker"]
            if ending is not None or not unsettled or is_late:
                return ending
            time.sleep(_PAUSE)

    def _last_lines(self) -> str:
        with suppress(OSError):
            lines = self._launcher_log.read_text(errors="replace").splitlines()
            return "\n".join(line.removeprefix("mslaunch: ") for line in lines[-_LAST_LINES:]) or NO_WORD
        return NO_WORD


def _launcher(pods: list[Pod]) -> Pod | None:
    return next((pod for pod in pods if part_of(pod) == "launcher"), None)
