"""--detach: a launcher that goes on by itself once it has connected, checked and planned; until then it is watched."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.run.find import arguments_for, find_run


class Detached:
    """This process in two: the launcher, and whoever waits until it has begun."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._read, self._write = os.pipe()
        self.launcher = os.fork()
        self.waits = self.launcher != 0
        os.close(self._write if self.waits else self._read)

    def leave(self, folder: Path, launcher_log: Path) -> None:
        """Leave terminal and parent, on the launcher's side; output goes to launcher.log from now on."""
        os.setsid()
        log = os.open(launcher_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.write(self._write, os.fsencode(folder))
        os.close(self._write)

    def folder(self) -> Path | int:
        """Wait until the launcher is on its own, on the other side; return its exit code where it has ended instead."""
        with os.fdopen(self._read, "rb") as pipe:
            folder = pipe.read()
        if folder:
            return Path(os.fsdecode(folder))
        return os.waitstatus_to_exitcode(os.waitpid(self.launcher, 0)[1])

    def wait(self, as_json: bool) -> int:
        """Wait until the run has begun, and print its name; the launcher itself reports errors before that."""
        folder = self.folder()
        if isinstance(folder, int):
            return folder
        run = find_run(str(folder))
        while (now := run.record).state == "queued" and os.waitpid(self.launcher, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        if now.state == "queued":
            raise NotReadyError(
                f"the launcher could not start; {run.folder.launcher_log} says why. Or leave --detach out."
            )
        if as_json:
            print(json.dumps({"run_id": run.run_id, "run_dir": str(run.path), "launcher": self.launcher}))
        else:
            attach = f"mslaunch attach {arguments_for(run.folder, os.environ)}"
            print(f"{run.run_id} goes on by itself. Follow it with: {attach}")
        return 0
