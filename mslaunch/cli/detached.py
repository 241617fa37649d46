"""--detach: a launcher that goes on by itself once it has connected, checked and planned; until then it is watched."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.launch import record
from mslaunch.launch.run_folder import RunFolder


class Detached:
    """This process in two: the launcher, and whoever waits until it has begun."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._read, self._write = os.pipe()
        self._launcher = os.fork()
        self.waits = self._launcher != 0
        os.close(self._write if self.waits else self._read)

    def leave(self, folder: RunFolder) -> None:
        """The launcher's side: needs neither terminal nor parent from now on; its output goes to launcher.log."""
        os.setsid()
        log = os.open(folder.launcher_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.write(self._write, os.fsencode(folder.path))
        os.close(self._write)

    def wait(self, as_json: bool) -> int:
        """The other side: what went wrong before the start was said by the launcher itself; return its code."""
        told = b""
        while data := os.read(self._read, 4096):
            told += data
        if not told:
            return os.waitstatus_to_exitcode(os.waitpid(self._launcher, 0)[1])
        folder = RunFolder(Path(os.fsdecode(told)))
        while (now := record.load(folder)).state == "queued" and os.waitpid(self._launcher, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        if now.state == "queued":
            raise NotReadyError(f"the launcher could not start; {folder.launcher_log} says why. Or leave --detach out.")
        if as_json:
            print(json.dumps({"run_id": folder.run_id, "run_dir": str(folder.path), "launcher": self._launcher}))
        else:
            print(f"{folder.run_id} goes on by itself. Follow it with: mslaunch logs -f {folder.run_id}")
        return 0
