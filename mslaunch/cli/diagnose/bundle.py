"""`mslaunch diagnose RUN --bundle FILE.zip`, and reading such a file on another machine."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch import __version__
from mslaunch.diagnose.bundle import LARGEST, read_bundle, write_bundle
from mslaunch.diagnose.evidence import Evidence
from mslaunch.diagnose.logs.sources import LogFile
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import RequestError
from mslaunch.run.record import from_value
from mslaunch.shared.secret_names import masked
from mslaunch.text import byte_count, counted

if TYPE_CHECKING:
    from mslaunch.diagnose.verdict import Verdict
    from mslaunch.run.record import RunRecord

_SHOWN_VARIABLES = (
    *("ASCEND", "CUDA", "DEVICE", "GLOG", "HCCL", "LD_", "MS_", "MSLAUNCH", "NCCL"),
    *("OMP", "PYTHON", "RANK", "SLURM"),
)
_PACKAGES = ("mindspore", "mindformers", "numpy", "psutil")
_CANN = ("/usr/local/Ascend/ascend-toolkit/latest/version.cfg", "/usr/local/Ascend/driver/version.info")


def save_bundle(target: Path, record: RunRecord, is_run: bool, sources: list[LogFile], evidence: Evidence) -> str:
    """Write the bundle of a run or of a folder of logs; return a sentence about it."""
    environment = dict(os.environ)
    chosen = {name: value for name, value in environment.items() if name.startswith(_SHOWN_VARIABLES)}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system, machine = platform.platform(), platform.machine()
    about = {
        "mslaunch": __version__,
        "name": record.run_id,
        "record": record.to_dict() if is_run else None,
        "verdict": record.verdict.to_dict() if record.verdict else None,
        "versions": _versions(),
        "environment": {name: masked(name, value) for name, value in sorted(chosen.items())},
        "host": {"system": system, "machine": machine, "cores": os.cpu_count(), "memory": memory},
        "notes": list(evidence.notes),
    }
    try:
        omitted = write_bundle(target, about, sources, evidence.reads, environment)
    except FileExistsError:
        raise RequestError(f"{target}: it exists already. Name another file, or remove it.") from None
    except OSError as error:
        raise RequestError(f"{target}: cannot be written: {error.strerror or error}.") from None
    size = target.stat().st_size
    assert size <= LARGEST, size
    left = f"; left out for lack of room: {counted(len(omitted), 'file')}" if omitted else ""
    return f"{target}: {byte_count(size)}, secrets masked{left}. Read it before you send it."


def open_bundle(path: Path) -> tuple[RunRecord | None, list[LogFile]]:
    """Return the record of the run that a bundle is of, None for a folder of logs, and the logs."""
    try:
        about, sources = read_bundle(path)
        raw = about.get("record")
        record = None if raw is None else from_value(raw)
    except Unreadable as error:
        raise RequestError(f"{path}: not a bundle that can be read: {error}. Make it again with --bundle.") from None
    if record is not None and record.verdict is not None:
        record = replace(record, verdict=_relocated(record.verdict, path, sources))
    return record, sources


def _relocated(verdict: Verdict, path: Path, sources: list[LogFile]) -> Verdict:
    """Name logs by their place in the bundle: the paths of another machine mean nothing here."""
    longest_first = sorted(sources, key=lambda source: len(source.name), reverse=True)

    def place(log: str | None) -> str | None:
        if not log:
            return log
        for source in longest_first:
            if f"/{log}".endswith(f"/{source.name}"):
                return source.shown
        return f"{path}/{Path(log).name}"

    chain = tuple(replace(step, log=place(step.log)) for step in verdict.chain)
    return replace(verdict, log=place(verdict.log), chain=chain)


def _versions() -> dict[str, str]:
    versions = {"mslaunch": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    for path in map(Path, _CANN):
        with suppress(OSError):
            versions[str(path)] = path.read_text(errors="replace")[:2000]
    return versions
