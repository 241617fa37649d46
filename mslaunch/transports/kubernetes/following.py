"""Keeps the folders of runs up to date while their launchers run in pods, and deletes what has ended."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.errors import MslaunchError
from mslaunch.transports.kubernetes.cluster import Cluster, NotFound, part_of
from mslaunch.transports.kubernetes.mirror import Mirror, amend, locked
from mslaunch.transports.kubernetes.states import first_ending

_PAUSE = 1.0
_OVER = ("Succeeded", "Failed")
_LAST_LINES = 20


class Following:
    """One run that is followed: read once at the start, then by a thread for as long as this process lives."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self.is_ours = False
        self.has_ended = False
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
                    self.is_ours = True
                    self._follow(mirror)
        except OSError:
            return  # the folder is gone, or the disk is full
        finally:
            self._ready.set()

    def _follow(self, mirror: Mirror) -> None:
        """Read the log so far, then follow it; a stream or a server that is lost is tried again."""
        follow = False
        while True:
            try:
                pods = self._cluster.pods()
            except (NotFound, MslaunchError):
                pods = None
            launcher = next((pod for pod in pods or () if part_of(pod) == "launcher"), None)
            if launcher is not None and (launcher.get("status") or {}).get("phase") not in (None, "Pending"):
                mirror.feed(self._cluster.log(launcher["metadata"]["name"], follow))
                is_over = launcher["status"]["phase"] in _OVER
                if mirror.exit_code is not None or is_over:
                    self._finish(mirror, launcher)
                    return
            elif pods == [] and follow and self._is_gone():
                return
            self._ready.set()
            if follow or launcher is None:
                time.sleep(_PAUSE)
            follow = True

    def _is_gone(self) -> bool:
        try:
            self._cluster.root()
        except NotFound:
            return True
        except MslaunchError:
            return False
        return False

    def _finish(self, mirror: Mirror, launcher: dict[str, Any]) -> None:
        """Record how the run ended, with what Kubernetes knows of it, and delete its objects."""
        code = mirror.exit_code
        if code is None:
            code = _exit_code(launcher)
        ending = None
        if code != 0:
            with suppress(NotFound, MslaunchError):
                ending = _settled_ending(self._cluster)
        conclude(self._folder, code, ending)
        if ending is not None:
            amend(self._folder, ending)
        self.has_ended = True
        self._ready.set()
        with suppress(NotFound, MslaunchError):
            self._cluster.delete()


def _settled_ending(cluster: Cluster) -> dict[str, Any] | None:
    """Why Kubernetes ended a pod; a pod's status may come a moment after the launcher's end."""
    for _ in range(5):
        pods = cluster.pods(patience=20)
        ending = first_ending(pods)
        if ending is not None or all((pod.get("status") or {}).get("phase") in _OVER for pod in pods):
            return ending
        time.sleep(_PAUSE)
    return None


def _exit_code(pod: dict[str, Any]) -> int:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated") or {}
        if "exitCode" in terminated:
            return int(terminated["exitCode"]) or 1
    return 1


def conclude(folder: Path, exit_code: int, ending: dict[str, Any] | None) -> None:
    """Record the end of a run whose launcher could not: it ended before the run began, or was ended itself."""
    path = folder / layout.RECORD
    with suppress(OSError, ValueError):
        raw = json.loads(path.read_bytes())
        if raw.get("state") in ("succeeded", "failed", "stopped", "lost"):
            return
        state = "succeeded" if exit_code == 0 else "stopped" if exit_code in (130, 143) else "failed"
        raw |= {"state": state, "exit_code": exit_code, "transport": "kubernetes"}
        raw["ended"] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        if state == "failed":
            raw["verdict"] = ending or {"cause": "not ready", "summary": _last_lines(folder), "exit_code": exit_code}
        path.write_text(json.dumps(raw, indent=1))


def _last_lines(folder: Path) -> str:
    with suppress(OSError):
        lines = (folder / layout.LAUNCHER_LOG).read_text(errors="replace").splitlines()
        told = [line.removeprefix("mslaunch: ") for line in lines[-_LAST_LINES:]]
        return "\n".join(told) or "the launcher ended without a word."
    return "the launcher ended without a word."
