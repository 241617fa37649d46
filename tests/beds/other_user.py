"""Another user for tests: commands and functions that run with the rights of uid 65534. Takes root."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

NOBODY = 65534
ROOT = Path(__file__).parents[2]
MSLAUNCH = str(Path(sys.executable).with_name("mslaunch"))

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"),
    reason="another user is needed: root, setpriv and unshare (Debian: util-linux)",
)


def as_user(argv: Sequence[str], uid: int = NOBODY, limit: str = "") -> list[str]:
    """Return a command line that runs a command as another user; `limit` is a shell command for that process.

    Where Python lies below a folder that only root may enter, the command gets a view of the file system in which the
    rest of that folder is missing and the way to Python is open.
    """
    home = next((path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 0o001), None)
    lines = ["set -e"]
    if home is not None:
        below = home / Path(sys.base_prefix).relative_to(home).parts[0]
        lines += [
            "view=$(mktemp -d)",
            "mount -t tmpfs -o mode=0755 tmpfs $view",
            f"mkdir $view/{shlex.quote(below.name)}",
            f"mount --bind {shlex.quote(str(below))} $view/{shlex.quote(below.name)}",
            f"mount --rbind $view {shlex.quote(str(home))}",
            "umount -l $view",
            "rmdir $view",
        ]
    lines += [limit, f'exec setpriv --reuid {uid} --regid {uid} --clear-groups "$@"']
    return ["unshare", "--mount", "bash", "-c", "\n".join(filter(None, lines)), "as-user", *argv]


def run_as(
    argv: Sequence[str], cwd: Path, env: dict[str, str] | None = None, uid: int = NOBODY, limit: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command as another user to its end, with few variables of its own."""
    return subprocess.run(
        as_user(argv, uid, limit),
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "GLOG_v": "3"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )
