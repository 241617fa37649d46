"""A sweep before it starts: every combination planned, how many run at a time, and the folder that holds them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mslaunch.errors import CombinationError, MslaunchError, RequestError, RunExists, SweepAlive
from mslaunch.launcher.connect import choose, survey
from mslaunch.launcher.facts import find_devices, job_variables, new_run_id
from mslaunch.launcher.job_command import take_secrets
from mslaunch.launcher.job_command import without_secrets as without_secret_values
from mslaunch.launcher.pipeline import make_plan
from mslaunch.launcher.read import ReadJob, Request, read, read_config_text
from mslaunch.plan.combinations import Combination
from mslaunch.plan.model import Plan
from mslaunch.plan.spec import agree_on_workers
from mslaunch.ranges import format_ranges
from mslaunch.run import sweep_record
from mslaunch.run.launchers import this_process
from mslaunch.run.liveness import current
from mslaunch.run.ownership import check_owner
from mslaunch.run.paths import SweepFolder
from mslaunch.run.record import ENDED, iso
from mslaunch.run.writing import make_whole
from mslaunch.settings.launch import PROGRAM_SETTINGS
from mslaunch.settings.resolve import flag_name
from mslaunch.settings.yaml_config import without_secrets
from mslaunch.transports.base import JobQueue, Transport


@dataclass(frozen=True, slots=True)
class Claim:
    """The devices that one run needs for itself; on CPUs there are none."""

    count: int = 0  # so many of the pool, any of them
    fixed: frozenset[tuple[str, int]] = frozenset()  # or these: host and device


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that is decided before the first run starts."""

    folder: SweepFolder
    request: Request  # what all runs share
    combinations: tuple[Combination, ...]
    run_ids: tuple[str, ...]
    waiting: tuple[int, ...]
    """The combinations that are to be run, by index; the others have succeeded already."""
    at_once: int | None = None  # how many runs at a time; None leaves it to the queue
    is_resumed: bool = False
    queue: JobQueue | None = None
    """Where the runs are submitted: they are not for this process to carry out."""
    claims: Mapping[int, Claim] = field(default_factory=dict)
    pool: tuple[int, ...] = ()  # the devices of this machine that the runs share out
    plan: Plan | None = None  # the plan of the first combination that is to be run
    has_webhook: bool = False  # whether the end of the runs is posted to a URL

    def member(self, index: int, devices: tuple[int, ...] = ()) -> Request:
        """The request for one run, with its devices where the sweep shares them out."""
        flags = {**self.request.flags, "runs_dir": str(self.folder.path), "run_id": self.run_ids[index], "tail": "none"}
        if devices:
            flags["devices"] = format_ranges(devices)
        return replace(self.request, flags=flags, assignments=self.combinations[index].assignments)

    def label(self, index: int) -> str:
        """What a run is called on the screen."""
        label = self.combinations[index].label
        return f"run {index + 1}/{len(self.combinations)}" + (f" {label}" if label else "")


def prepare_sweep(request: Request, combinations: tuple[Combination, ...], at_once: int | None = None) -> Sweep:
    """Plan every combination of a new sweep; nothing is written, started or contacted."""
    request, combinations = take_secrets(request, combinations)
    request = _read_once(request, combinations)
    launch = read(replace(request, assignments=combinations[0].assignments)).spec.launch
    folder = SweepFolder(Path(launch.runs_dir).resolve() / (launch.run_id or new_run_id()))
    if folder.path.exists():
        raise RunExists(folder.sweep_id, str(folder.path))
    width = len(str(len(combinations)))
    run_ids = tuple(f"{number:0{width}d}" for number in range(1, len(combinations) + 1))
    return _planned(Sweep(folder, request, combinations, run_ids, tuple(range(len(combinations))), at_once))


def resume_sweep(
    name: str, request: Request, combinations: tuple[Combination, ...] = (), at_once: int | None = None
) -> Sweep:
    """Plan what is missing of an earlier sweep, or did not succeed; what is typed now outweighs what was typed then."""
    request, combinations = take_secrets(request, combinations)
    request = replace(request, config_text=read_config_text(request))
    folder = sweep_record.find(Path(read(request).spec.launch.runs_dir).resolve(), name)
    check_owner(folder, "resume")
    before = sweep_record.read(folder)
    typed = [combination.assignments for combination in combinations]
    if any(typed) and typed != [combination.assignments for combination in before.combinations]:
        raise RequestError(
            f"{folder.sweep_id} was started with other --set values, and is resumed with the same. "
            "Leave --set out, or start another sweep."
        )
    flags = {name: value for name, value in before.flags.items() if (name, value) != ("webhook", None)}
    script_args = request.script_args or before.script_args
    if request.config is None:
        request = replace(request, config=before.config, config_text=before.config_text)
    request = replace(request, flags={**flags, **request.flags}, script_args=script_args)
    request = _read_once(request, before.combinations)
    run_ids, waiting = _left(folder, before)
    made = _planned(Sweep(folder, request, before.combinations, run_ids, waiting, at_once, is_resumed=True))
    if waiting and "webhook" in before.flags and "webhook" not in request.flags and not made.has_webhook:
        raise RequestError(
            f"{folder.sweep_id} was started with a webhook, whose URL is in no file. Export it as MSLAUNCH_WEBHOOK, or "
            "give --set launch.webhook=null to go on without."
        )
    return made


def _read_once(request: Request, combinations: tuple[Combination, ...]) -> Request:
    """Read the config now: a pipe has it only once, and all runs are to have the same."""
    for key in combinations[0].varied:
        name = key.removeprefix("launch.")
        if name != key and name in request.flags:
            flag = flag_name(name)
            raise RequestError(f"{flag} and --set {key}: the one outweighs all values of the other. Leave one out.")
    request = replace(request, config_text=read_config_text(request))
    if request.args_may_name:
        complete = read(replace(request, assignments=combinations[0].assignments)).request
        request = replace(complete, assignments=request.assignments)
    return request


def _left(folder: SweepFolder, before: sweep_record.SweepRecord) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the run of each combination, with a new id for those that are run again, and which these are."""
    run_ids, waiting = list(before.run_ids), []
    for index, run_id in enumerate(before.run_ids):
        run = folder.run(run_id)
        if not run.record.is_file():
            waiting.append(index)
            if not run.path.exists():
                continue
        else:
            state = current(run).state
            if state not in ENDED:
                raise SweepAlive(folder.sweep_id, run.name)
            if state == "succeeded":
                continue
            waiting.append(index)
        stem, tries = before.run_ids[index].partition(".")[0], 2
        while folder.run(f"{stem}.{tries}").path.exists():
            tries += 1
        run_ids[index] = f"{stem}.{tries}"
    return tuple(run_ids), tuple(waiting)


@dataclass(slots=True)
class _Draft:
    """What planning one combination after the other has found."""

    claims: dict[int, Claim] = field(default_factory=dict)
    plan: Plan | None = None
    pool: tuple[int, ...] = ()
    transports: dict[str, Transport] = field(default_factory=dict)
    alone: str = ""  # the setting that lets no two runs run at a time
    cores: int = 1
    has_webhook: bool = False


def _planned(draft: Sweep) -> Sweep:
    """Plan everything that is to be run, so that whatever cannot be planned is told before anything starts."""
    if draft.at_once is not None and draft.at_once < 1:
        raise RequestError(f"--at-once {draft.at_once}: name at least one run at a time.")
    found = _Draft()
    for index in draft.waiting:
        try:
            _plan_one(draft, index, found)
        except MslaunchError as error:  # its label says which combination that is, unless all have the same error
            last = draft.waiting[-1]
            if index == draft.waiting[0] and (index == last or _error_of(draft, last) == str(error)):
                raise
            raise CombinationError(draft.label(index), error) from None
    if len(found.transports) > 1:
        raise RequestError(f"the runs of a sweep have one transport, not {' and '.join(sorted(found.transports))}.")
    transport = next(iter(found.transports.values()), None)
    queue = transport.queue if transport else None
    queue = queue if queue is not None and queue.current_job(os.environ) is None else None
    at_once = draft.at_once
    if transport is not None and queue is None:
        at_once = _at_once(draft.at_once, found, transport)
    planned = replace(draft, at_once=at_once, queue=queue, claims=found.claims, pool=found.pool)
    return replace(planned, plan=found.plan, has_webhook=found.has_webhook)


def _plan_one(draft: Sweep, index: int, found: _Draft) -> None:
    job = read(draft.member(index))
    transport = choose(job).transport
    claim, pool = _claim(job, transport, draft.combinations[index].varied)
    plan = make_plan(survey(choose(read(draft.member(index, pool[: claim.count]))))).plan
    if transport.needs_check or (plan.device_target != "CPU" and not claim.count):
        claim = Claim(fixed=frozenset((host.address, device) for host in plan.hosts for device in host.devices))
    launch = job.spec.launch
    for name in ("bind_cores", "numa", "core_map", "node_map", "memory_map", "master_port"):
        if getattr(launch, name):
            found.alone = job.spec.sources[name]
    found.has_webhook |= launch.webhook is not None
    found.transports[transport.name] = transport
    found.claims[index], found.pool = claim, pool or found.pool
    found.cores = max(found.cores, plan.world_size)
    if index == draft.waiting[0]:
        found.plan = plan


def _claim(job: ReadJob, transport: Transport, varied: tuple[str, ...]) -> tuple[Claim, tuple[int, ...]]:
    """Return how many devices of this machine a run needs, and the devices to choose them from."""
    spec = job.spec
    if transport.needs_check or job.named or spec.rank_table is not None or "launch.devices" in varied:
        return Claim(), ()
    found = find_devices(spec.config.values.get("device_target"), job_variables(spec))
    if found.target == "CPU":
        return Claim(), ()
    pool = spec.launch.devices or found.numbers
    shared = replace(spec.launch, devices=None)
    workers = agree_on_workers(replace(spec, launch=shared), pool)
    return (Claim(workers), pool) if workers <= len(pool) else (Claim(), ())  # planning tells what is missing


def _at_once(asked: int | None, found: _Draft, transport: Transport) -> int:
    """As many as the machine has devices or cores for; on other hosts one, since they are not ours to share out."""
    if found.alone:
        if asked is not None and asked > 1:
            raise RequestError(f"--at-once {asked}: with {found.alone} runs would share it. Leave one of them out.")
        return 1
    if asked is not None:
        return asked
    if transport.needs_check:
        return 1
    counts = [claim.count for claim in found.claims.values()]
    if all(counts):
        return max(1, len(found.pool) // max(counts))
    if any(claim.fixed for claim in found.claims.values()):
        return len(found.claims)  # devices that are in use are waited for
    return max(1, len(os.sched_getaffinity(0)) // found.cores)


def _error_of(draft: Sweep, index: int) -> str | None:
    try:
        _plan_one(draft, index, _Draft())
    except MslaunchError as error:
        return str(error)
    return None


@contextmanager
def opened(made: Sweep, in_process: bool) -> Iterator[None]:
    """Make the sweep's folder, or write into the one that is there, and hold it while the sweep runs."""
    record = _record(made, in_process)
    if not made.is_resumed:
        make_whole(made.folder.path, partial(sweep_record.save, made.folder, record))
    with sweep_record.locked(made.folder):
        if made.is_resumed:
            if _left(made.folder, sweep_record.read(made.folder)) != (made.run_ids, made.waiting):
                raise SweepAlive(made.folder.sweep_id)  # another process has resumed it since
            sweep_record.save(made.folder, record)
        yield


def _record(made: Sweep, in_process: bool) -> sweep_record.SweepRecord:
    request = made.request
    flags = without_secret_values(request.flags)
    flags = {name: value for name, value in flags.items() if name not in ("run_id", "runs_dir", "webhook")}
    flags |= {name: str(Path(flags[name]).absolute()) for name in ("script", "rank_table", "hostfile") if name in flags}
    varies = any(f"launch.{name}" in made.combinations[0].typed for name in PROGRAM_SETTINGS)
    names_file = not varies and "command" not in request.flags
    if made.plan is not None and made.plan.program.kind == "script" and names_file:
        flags["script"] = str(Path(made.plan.job_dir) / made.plan.workdir / made.plan.script)
    if made.has_webhook:
        flags["webhook"] = None  # so that whoever resumes the sweep is asked for the URL
    runs = zip(made.run_ids, made.combinations, strict=True)
    return sweep_record.SweepRecord(
        sweep_id=made.folder.sweep_id,
        started=iso(time.time()),
        launcher=this_process(in_process),
        config=str(Path(request.config).absolute()) if request.config else None,
        config_text=None if request.config_text is None else without_secrets(request.config_text),
        flags=flags,
        script_args=request.script_args,
        varied=made.combinations[0].varied,
        runs=tuple(sweep_record.SweepMember(run_id, combination.typed) for run_id, combination in runs),
    )
