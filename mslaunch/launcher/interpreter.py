"""The Python that runs the ranks: what MindSpore it has, and whether it is the one that a person expects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.plan.spec import JobSpec
from mslaunch.shared import probe

TRIED = ("2.7", "2.8", "2.9", "2.10")
"""Versions of MindSpore with which all methods were run."""
FIRST_MSRUN = (2, 3)
FIRST_NUMBERED = (2, 1)
"""The first version whose get_rank() was seen, or is documented, to be RANK_ID in a cluster that it forms itself."""


def mindspore_version(python: str) -> str | None:
    """Return the version of the MindSpore that a Python on this machine would import."""
    if python == sys.executable:
        return probe.mindspore_version()
    import inspect

    function = inspect.getsource(probe.mindspore_version)
    look = f"from __future__ import annotations\nimport os, re, sys\n{function}\nprint(mindspore_version() or '')"
    done = subprocess.run([python, "-c", look], capture_output=True, check=False, text=True)
    return done.stdout.strip() or None


def check_version(version: str | None, method: str, where: str) -> None:
    """Refuse a method that a version of MindSpore does not have."""
    if version is not None and method == "msrun" and _numbers(version) < FIRST_MSRUN:
        raise NotReadyError(f"MindSpore {version} ({where}) has no msrun, which came with 2.3. Leave --method out.")


def describe_version(version: str | None, where: str) -> Iterator[str]:
    """Say that a version of MindSpore was not tried, and what is known of it."""
    if version is None or ".".join(version.split(".")[:2]) in TRIED:
        return
    known = ""
    if _numbers(version) < FIRST_NUMBERED:
        known = "; it numbers ranks as they join, so get_rank() may differ from RANK_ID and from the rank's folder"
    yield f"MindSpore {version} ({where}) was not tried with mslaunch; {', '.join(TRIED)} were{known}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def describe_environment(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Say that the ranks do not use the virtual environment that is active in this shell."""
    active = environment.get("VIRTUAL_ENV", "")
    if not active and environment.get("CONDA_DEFAULT_ENV") != "base":
        active = environment.get("CONDA_PREFIX", "")
    if not active or spec.source("python") != "default" or Path(active).resolve() == Path(sys.prefix).resolve():
        return
    yield (
        f"the ranks run with {sys.executable}, as mslaunch does, not with the active environment {active}: "
        f"launch.python: {active}/bin/python chooses that"
    )
