"""resume: where a restarted job goes on from."""

from __future__ import annotations

import os


def resume() -> str | None:
    """Return this rank's checkpoint file to go on from, or None where the job starts from the beginning."""
    return os.environ.get("MSLAUNCH_RESUME") or None
