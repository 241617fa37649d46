"""What a method is: how the ranks of a placed job are started, and what it needs for that."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mslaunch.hosts import Host
from mslaunch.plan.binding import Binding
from mslaunch.plan.model import Facts, File, Process
from mslaunch.plan.program import Program
from mslaunch.shared import layout

if TYPE_CHECKING:
    from mslaunch.plan.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank in its place: a device of a host and, where ranks are bound, its cores and memory."""

    rank: int
    node: int
    host: Host
    local_rank: int
    device_id: int
    binding: Binding


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job whose ranks have their places: what every method starts from."""

    spec: JobSpec
    hosts: tuple[Host, ...]
    facts: Facts
    world_size: int
    env: Mapping[str, str]
    program: Program
    ranks: tuple[Rank, ...]

    @property
    def has_scheduler(self) -> bool:
        """Tell whether its ranks look for MindSpore's scheduler."""
        # On a CPU, init() fails without a scheduler under plain mpirun and a plain rank-table start too.
        return self.spec.method.needs_scheduler or self.facts.device_target == "CPU"

    def path(self, *parts: str) -> str:
        return posixpath.join(self.facts.run_dir, *parts)

    @property
    def command(self) -> tuple[str, ...]:
        """What mslaunch_rank.py gets in every rank: the program as it was copied, or the project's own."""
        root = self.facts.job_dir if self.spec.launch.cwd == "submit" else self.path(layout.CODE)
        return self.program.command(posixpath.join(root, self.facts.workdir))


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """What a method answers: variables for all processes, the processes, and files for the run's folder."""

    env: Mapping[str, str]
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()


class Method(ABC):
    """How ranks are started. A subclass has a name, its properties and `plan`; nothing else depends on which it is."""

    name: str
    needs_scheduler = False
    """The ranks form a cluster through MindSpore's scheduler on every device; on a CPU they always do."""
    by_script = False
    """Rendered scripts start the ranks, so none of them can have the launcher's standard input."""
    needs_program = ""
    """A program that has to be on PATH."""
    program_advice = ""
    """How to install that program: a sentence."""
    needs_mindspore = False
    """The ranks' Python must have MindSpore, whatever the script imports."""
    first_mindspore: tuple[int, int] = (0, 0)
    """The first version of MindSpore that has the method."""
    needs_rank_table = False
    """Every rank gets a rank table: the one that the job or the system names, else one that is written for the run."""
    reaches_hosts = False
    """It reaches the other hosts itself from the first one, with the same Python on all of them."""

    @abstractmethod
    def plan(self, job: PlacedJob) -> MethodPlan:
        """Return the processes and files that start the job. Pure: opens no file, reads no clock."""
