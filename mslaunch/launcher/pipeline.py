"""The road that every launch takes, from what was asked to how it ended. Read this first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mslaunch.errors import NoDevices, NoMindSpore
from mslaunch.launcher.connect import Site, choose, connect, survey
from mslaunch.launcher.facts import check_held_devices
from mslaunch.launcher.folder import create_folder
from mslaunch.launcher.read import Request, read
from mslaunch.plan import make
from mslaunch.plan.model import Plan
from mslaunch.run.paths import RunFolder
from mslaunch.transports.base import JobQueue

if TYPE_CHECKING:
    from mslaunch.checkpoint.moving.new_files import Planned
    from mslaunch.checkpoint.moving.shard_writer import Progress


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A plan, and what has to be made before it can start."""

    plan: Plan
    site: Site
    reshard: Planned | None = None
    """The checkpoint that is written into the run's folder."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A job that is ready to run: its plan, its folder and its hosts."""

    plan: Plan
    folder: RunFolder
    site: Site
    environment: Mapping[str, str]


class Runner(Protocol):
    """Where a job runs and who watches it: this process, a thread of it, or a queue."""

    def say(self, text: str) -> None:
        """Show which hosts are waited for, and what happens before the start."""

    @property
    def take_part(self) -> Callable[[Any], Any] | None:
        """Takes part in a job that another process launches; None where the caller never does."""

    def submit(self, planned: PlannedJob, queue: JobQueue) -> Any:
        """Hand a job to a queue."""

    def starts(self, planned: PlannedJob) -> bool:
        """Tell whether the job is still to start, now that its hosts have answered."""

    def moving(self) -> AbstractContextManager[Callable[[int], Progress]]:
        """Show how far the bytes are that are moved before the start."""

    def run(self, launch: Launch) -> Any:
        """Run the job, from here on the owner of its hosts."""


def launch(request: Request, runner: Runner) -> Any:
    """Take a job from what was asked to how it ended, and return what its runner makes of that."""
    job = read(request)
    with ExitStack() as cleanup:
        chosen = choose(job, runner.say)
        if runner.take_part and (member := chosen.transport.membership(chosen.context)) is not None:
            return runner.take_part(member)
        site = connect(chosen, cleanup)
        planned = make_plan(site)
        if site.queue is not None:
            return runner.submit(planned, site.queue)
        if site.cluster is None:
            check_held_devices(planned.plan)
        if not runner.starts(planned):
            return None
        folder = create_folder(planned, runner)
        ready = Launch(planned.plan, folder, site, {**os.environ, **site.secrets})
        cleanup.pop_all()
    return runner.run(ready)


def plan_only(request: Request, imagined: bool = False) -> Plan:
    """Plan a job as --dry-run shows it: no host is contacted, nothing is written or started.

    Where this machine has not what the job needs, the plan is for one that has, and a note says so.
    """
    chosen = choose(read(request))
    try:
        return make_plan(survey(chosen, imagined)).plan
    except (NoDevices, NoMindSpore) as error:
        plan = make_plan(survey(chosen, imagined=True)).plan
        return replace(plan, notes=(*plan.notes, f"it cannot be started here: {error}"))


def make_plan(site: Site) -> PlannedJob:
    """Plan a job for its site. Pure, but for the checkpoint of an inference job, whose headers are read."""
    job, spec, reshard = site.job, site.job.spec, None
    if job.checkpoint is not None:
        from mslaunch.launcher.inference import choose_files

        workers = sum(len(host.devices) for host in site.hosts)
        chosen = choose_files(job.checkpoint, workers, site.facts.run_dir)
        spec, reshard = replace(spec, checkpoints=chosen.checkpoints), chosen.reshard
    attempt = site.resumed.attempt if site.resumed else 0
    reach = make.HERE
    if not site.is_imagined:
        reach = site.reach(site.hosts)
    if not site.transport.needs_check and not site.is_imagined:
        reach = replace(reach, passes_stdin=job.request.offers_stdin)
    plan = make.make_plan(spec, site.hosts, site.facts, attempt, reach)
    if site.resumed:
        plan = site.resumed.resume(plan)
    plan = replace(plan, notes=(*plan.notes, *site.notes))
    files = plan.files
    if site.queue is not None:
        from mslaunch.launcher.job_command import own_command

        files = (*files, *site.queue.files(spec, plan, own_command(job, site.program)))
    return PlannedJob(replace(plan, files=(*files, *job.request.files)), site, reshard)
