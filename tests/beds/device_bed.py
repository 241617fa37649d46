"""A /dev with the files of NPUs and GPUs that are not there, to run commands in."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, Bench

_MOUNT = """set -e
place=$1; shift
files=$1; shift
mount -t tmpfs none $place
for one in null zero full random urandom tty; do touch $place/$one; mount --bind /dev/$one $place/$one; done
ln -s /proc/self/fd $place/fd
mkdir $place/shm
for one in $files; do touch $place/$one; done
mount --bind $place /dev
exec "$@"
"""


def on_devices(
    bench: Bench, place: Path, files: Iterable[str], *args: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run an mslaunch command where /dev has these device files and no others of the kind."""
    place.mkdir(exist_ok=True)
    words = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(place), " ".join(files), MSLAUNCH, *args]
    done = subprocess.run(words, cwd=bench.folder, env={**bench.env, **env}, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("a /dev of one's own needs root")
    return done
