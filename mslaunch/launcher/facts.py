"""Gathering: everything that planning needs and cannot decide, asked of this machine once."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path

from mslaunch.errors import HostsNotReady, NoMindSpore, NotReadyError, PortBusy, PythonMissing
from mslaunch.hosts import LOCAL
from mslaunch.launcher.program import (
    FoundProgram,
    Project,
    check_module,
    find_nested_launcher,
    find_project,
    shows_config_argument,
)
from mslaunch.launcher.read import ReadJob
from mslaunch.plan.argument_paths import candidates
from mslaunch.plan.methods.method import Method
from mslaunch.plan.model import Facts, HostFacts, NumaFacts, Plan, read_numa
from mslaunch.plan.spec import JobSpec
from mslaunch.plan.variables import store_port
from mslaunch.run.paths import runs_root
from mslaunch.shared import probe
from mslaunch.shared.probe import is_free
from mslaunch.shared.visible_devices import DEVICE_FILES, VARIABLES, ask_tool, device_numbers, limit, visible_devices
from mslaunch.text import describe_held, describe_limit


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """The devices of one target that ranks on this machine see."""

    target: str
    numbers: tuple[int, ...] = ()
    limit: str = ""
    """What hides some of them, as a clause; nothing where nothing does."""


def find_devices(device_target: str | None, variables: Mapping[str, str] | None = None) -> LocalDevices:
    """Return the target and the devices of this machine: as configured, else Ascend, else GPU, else CPU.

    `variables` are those that the job sets for its ranks.
    """
    environment = {**os.environ, **(variables or {})}
    devices = {"CPU": LocalDevices("CPU")}
    for target, stem in DEVICE_FILES.items():
        there = device_numbers(stem)
        numbers = visible_devices(stem, there, environment, ask_tool) if there else {}
        hidden = ""
        if len(numbers) < len(there):
            hidden = describe_limit(limit(stem, environment), tuple(numbers.values()), len(there), target)
        devices[target] = LocalDevices(target, tuple(numbers), hidden)
    if device_target in devices:
        return devices[device_target]
    for local in devices.values():
        if local.numbers:
            return local
    return LocalDevices("CPU", limit="; ".join(local.limit for local in devices.values() if local.limit))


def job_variables(spec: JobSpec) -> dict[str, str]:
    """The variables of a job that say which devices its ranks see."""
    given = {name: os.environ.get(name) if value is None else value for name, value in spec.launch.env.items()}
    return {name: value for name in VARIABLES.values() if (value := given.get(name)) is not None}


def check_held_devices(plan: Plan) -> None:
    """Refuse devices of this machine that other runs use; the agent takes them only later, for certain."""
    stem = DEVICE_FILES.get(plan.device_target)
    if stem is not None and not plan.share_devices:
        from mslaunch.shared.device_locks import holders

        devices = [worker.device_id for worker in plan.workers if worker.device_id is not None]
        if held := holders(stem, devices, {**os.environ, **plan.env}):
            raise HostsNotReady(describe_held(held))


TRIED = ("2.7", "2.8", "2.9", "2.10")
"""Versions of MindSpore with which all methods were run."""
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


def check_version(version: str | None, method: Method, where: str) -> None:
    """Refuse a method that a version of MindSpore does not have."""
    if version is not None and _numbers(version) < method.first_mindspore:
        first = ".".join(map(str, method.first_mindspore))
        raise NotReadyError(
            f"MindSpore {version} ({where}) has no {method.name}, which came with {first}. Leave --method out."
        )


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
    if not active or spec.sources["python"] != "default" or Path(active).resolve() == Path(sys.prefix).resolve():
        return
    yield (
        f"the ranks run with {sys.executable}, as mslaunch does, not with the active environment {active}: "
        f"launch.python: {active}/bin/python chooses that"
    )


# Below the ports that Linux hands out by itself, above those that MindSpore's ranks take (256 each from 8118 on).
PORTS = range(24000, 32768)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is known of the hosts of a job that does not run on this machine."""

    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    port: int | None = None


def find_python(spec: JobSpec) -> str:
    """Return the interpreter that runs the ranks."""
    asked = spec.launch.python
    python = shutil.which(asked) if asked else sys.executable
    if not python:
        raise PythonMissing(asked or "python", spec.sources["python"])
    return str(Path(python).absolute())  # not resolved: the link in a virtual environment is what makes it one


def check_python(spec: JobSpec, python: str) -> None:
    """Make sure that an interpreter, and this machine, can run what is asked of them."""
    device_target = spec.config.values.get("device_target")
    if device_target not in (None, "None") and not has_mindspore(python):
        raise NoMindSpore(python, f"device_target: {device_target} in {spec.config.where('device_target')}")
    method = spec.method
    if method.needs_mindspore and not has_mindspore(python):
        raise NoMindSpore(python, f"{spec.sources['method']} {method.name}")
    program = method.needs_program
    if program and not shutil.which(program):
        raise NotReadyError(f"{program} is not on PATH, and --method {method.name} needs it. {method.program_advice}")


def has_mindspore(python: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec("mindspore") is not None
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mindspore') is None)"
    return subprocess.run([python, "-c", look], capture_output=True, check=False).returncode == 0


def choose_port(asked: int | None) -> int:
    """Return the port that was asked for, if it is free, or one that is."""
    if asked is not None:
        if not is_free(asked):
            raise PortBusy(asked, _holder(asked))
        return asked
    start = random.randrange(len(PORTS))
    for port in chain(PORTS[start:], PORTS[:start]):
        if is_free(port) and is_free(store_port(port)):
            return port
    raise PortBusy(PORTS[0], None)


def _holder(port: int) -> str | None:
    """Name the process that listens on a port, where that can be known."""
    import psutil

    for connection in psutil.net_connections(kind="tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return None


def new_run_id() -> str:
    """Date, time and a random suffix: sorts by age, and two launches in one second do not meet."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{random.SystemRandom().randrange(16**4):04x}"


def outside_paths(spec: JobSpec, args: tuple[str, ...], submit_dir: Path, project: Project) -> frozenset[str]:
    """Name the paths that exist from the submit folder, but would not from a rank's folder."""
    runs_dir = runs_root(Path(spec.launch.runs_dir).resolve())
    typed = {name: value for name, value in spec.launch.env.items() if value is not None}
    job_dir = project.root / project.workdir
    outside = set()
    for name in candidates(args, spec.config.values, {**os.environ, **typed}):
        with suppress(OSError):  # what cannot be looked at is left as it was given
            path = submit_dir / name
            seen_by_ranks = not path.resolve().is_relative_to(runs_dir)
            inside = seen_by_ranks and ".." not in Path(name).parts and _is_same(path, job_dir / name)
            if path.exists() and (not inside or name == "."):
                outside.add(name)
    return frozenset(outside)


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def gather(job: ReadJob, found: FoundProgram, device_target: str, elsewhere: Elsewhere | None = None) -> Facts:
    """Ask this machine for everything that a job's plan needs; what runs elsewhere needs no MindSpore here."""
    spec, submit_dir = job.spec, Path.cwd()
    source = found.file if found.program.kind != "executable" or found.program.is_in_job else None
    project = find_project(found.job_dir, source, os.environ.get("HOME"))
    run_id = spec.launch.run_id or new_run_id()
    python = find_python(spec)
    notes = [*job.request.notes, *found.notes, *describe_environment(spec, os.environ)]
    if elsewhere is None:
        check_python(spec, python)
        check_module(found, python)
        version = mindspore_version(python)
        check_version(version, spec.method, python)
        notes += describe_version(version, python)
    hosts = elsewhere.hosts if elsewhere else {}
    if not hosts:
        nodes = NumaFacts()
        if spec.launch.needs_numa:
            nodes = read_numa(probe.numa_facts({**os.environ, **job_variables(spec)}))
        hosts = {LOCAL: HostFacts(python, tuple(sorted(os.sched_getaffinity(0))), nodes)}
    return Facts(
        run_id=run_id,
        run_dir=str(Path(spec.launch.runs_dir).resolve() / run_id),
        submit_dir=str(submit_dir),
        job_dir=str(project.root),
        program=found.program,
        port=elsewhere.port if elsewhere and elsewhere.port else choose_port(spec.launch.master_port),
        device_target=device_target,
        hosts=hosts,
        environment=dict(os.environ),
        outside=outside_paths(spec, found.program.args, submit_dir, project),
        rank_table=job.rank_table,
        workdir=_inside(project.workdir),
        sources_dir=_inside(project.sources),
        notes=tuple(notes),
        takes_config=bool(spec.config.name) and shows_config_argument(found),
        nested=find_nested_launcher(found),
    )


def _inside(path: Path) -> str:
    return "" if path == Path() else str(path)
