"""Keeps the folders of runs up to date while their launchers run in pods, and deletes what has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.errors import MslaunchError
from mslaunch.transports.kubernetes.cluster import Cluster, NotFound, part_of
from mslaunch.transports.kubernetes.endings import concluded, lost_host, read_record
from mslaunch.transports.kubernetes.mirror import TRANSPORT, Mirror, locked
from mslaunch.transports.kubernetes.states import (
    ending_of,
    exit_code_of,
    first_ending,
    is_on_lost_node,
    is_over,
    phase_of_job,
)

_PAUSE = 1.0
_STATUS_PATIENCE = 5.0
"""Seconds in which a pod's status follows the end of the pod."""
_NODE_PATIENCE = 75.0
"""Seconds in which Kubernetes notices a lost node: 40 or 50 by default, and up to 60 for the pods of a deleted one."""
_QUIET = 10.0
"""How long a log may be silent before the pods are looked at again: a node may be lost."""
_EARLY_QUIET = 2.0
"""The same before the job begins: workers may have ended, or wait for something."""
_OVERLAP = 15.0
"""Seconds of a log that are read again after a pause: a line may be on its way for a while."""
_LAST_LINES = 20
NO_WORD = "the launcher ended without a word."

Pod = dict[str, Any]


class Following:
    """One run that is followed: read once at the start, then by a thread for as long as this process lives."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder = folder
        self._launcher_log = folder / layout.LAUNCHER_LOG
        self._cluster = cluster
        self.has_ended = False
        self._heard = ("", 0.0)
        """The pod whose log was read last, and when its last line came."""
        self._alone_since = time.monotonic()
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

    def _look(self, mirror: Mirror, follow: bool) -> bool:
        """Read what the launcher has written; say whether the run is over, and recorded."""
        launcher = _launcher(self._cluster.pods())
        if launcher is None:
            phase = phase_of_job(self._cluster.root())  # raises NotFound where the job was deleted
            return bool(phase) and self._finish(mirror, None, 0 if phase == "Succeeded" else 1)
        if (launcher.get("status") or {}).get("phase") in (None, "Pending"):
            return False
        self._read(mirror, launcher["metadata"]["name"], follow)
        pods = self._cluster.pods()  # reading took its time
        launcher = _launcher(pods) or launcher
        if mirror.exit_code is not None:
            return self._finish(mirror, launcher, mirror.exit_code)
        workers = [pod for pod in pods if part_of(pod) == "worker"]
        is_alone = bool(workers) and all(map(is_over, workers))
        if is_over(launcher):
            return self._finish(mirror, launcher, exit_code_of(launcher))
        if not (is_alone and is_on_lost_node(launcher)):
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > _NODE_PATIENCE:  # a node may come back
            return self._close(mirror, 1, first_ending([launcher], launcher["metadata"]["name"]))
        failed = [pod for pod in workers if (pod.get("status") or {}).get("phase") == "Failed"]
        return is_alone and bool(failed) and self._never_began(mirror, failed)

    def _read(self, mirror: Mirror, pod: str, follow: bool) -> None:
        """Read a pod's log from where this process has left off and some before, else from its beginning."""
        since = time.monotonic() - self._heard[1] + _OVERLAP if self._heard[0] == pod else None
        quiet = _EARLY_QUIET if self._record(mirror).get("state") == "queued" else _QUIET

        def lines() -> Iterator[bytes]:
            for line in self._cluster.log(pod, quiet if follow else 0.0, since):
                self._heard = (pod, time.monotonic())
                yield line

        if mirror.feed(pod, lines(), is_whole=since is None):
            self._heard = ("", 0.0)

    def _never_began(self, mirror: Mirror, failed: list[Pod]) -> bool:
        """Record the failure of a job for whose workers the launcher would wait in vain; say whether it is one."""
        if self._record(mirror).get("state") != "queued":
            return False
        ending = first_ending(failed, "") or self._early_ending(failed[0])
        return self._close(mirror, exit_code_of(failed[0]), ending)

    def _early_ending(self, pod: Pod) -> dict[str, Any]:
        """The verdict for a pod that ended before the job began: what it printed last."""
        name, code = pod["metadata"]["name"], exit_code_of(pod)
        *_, last = ["no word", *(line.decode(errors="replace") for line in self._cluster.log(name) if line)]
        summary = f"pod {name} ended with code {code} before the job began: {last[:300]}"
        return {"cause": TRANSPORT, "summary": summary, "exit_code": code}

    def _finish(self, mirror: Mirror, launcher: Pod | None, code: int) -> bool:
        """Record how the run ended, with what Kubernetes knows of it, and delete its objects."""
        record, ending = self._record(mirror), None
        if launcher is not None and ending_of(launcher):
            ending = first_ending([launcher], "")
        elif code != 0 and record.get("state") != "stopped":
            with suppress(NotFound, MslaunchError):
                ending = self._settled_ending(lost_host(record))
        if ending is None and launcher is not None and code != 0 and not self._launcher_log.exists():
            ending = self._early_ending(launcher)
        return self._close(mirror, code, ending)

    def _record(self, mirror: Mirror) -> dict[str, Any]:
        return mirror.final or read_record((self._folder / layout.RECORD).read_bytes()) or {}

    def _close(self, mirror: Mirror, code: int, ending: dict[str, Any] | None) -> bool:
        mirror.close(concluded(self._record(mirror), code, ending, self._last_lines()))
        self.has_ended = True
        self._ready.set()
        with suppress(NotFound, MslaunchError):
            self._cluster.delete()
        return True

    def _settled_ending(self, lost: str) -> dict[str, Any] | None:
        """Why Kubernetes ended a pod, once it knows: that a node is lost it notices after the launcher."""
        until = time.monotonic() + (_NODE_PATIENCE if lost else _STATUS_PATIENCE)
        while True:
            pods = self._cluster.pods(patience=20)
            ending = first_ending(pods, lost)
            unsettled = [pod for pod in pods if not is_over(pod) and part_of(pod) == "worker"]
            if ending is not None or not unsettled or time.monotonic() > until:
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
