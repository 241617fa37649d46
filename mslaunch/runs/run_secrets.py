"""The secrets of a run, as far as its folder and an environment tell them, so that no page shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.masking.documents import TELLING, find_secrets
from mslaunch.runs.paths import RunFolder

LARGEST = 2_000_000


def secrets_of(folder: RunFolder, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that are secret by their names in configuration, plan and environment, the longest first."""
    return find_secrets(_documents(folder), environment)


def _documents(folder: RunFolder) -> Iterator[tuple[str, str]]:
    for name in TELLING:
        try:
            yield name, read_text(folder.path / name, LARGEST, "replace", only_files=True)
        except (OSError, Unreadable):
            continue
