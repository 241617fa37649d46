"""The transport protocol: how a set of hosts is reached, what they are called, and how agents are spoken to.

A transport is a subclass of Transport and a row in the registry, or an entry point of the group `mslaunch.transports`.
docs/transports.md explains how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mslaunch.errors import MslaunchError, RequestError

if TYPE_CHECKING:
    from mslaunch.documents.schema import RunStatus
    from mslaunch.hosts import Host
    from mslaunch.plan.methods.method import Method
    from mslaunch.plan.model import File, Plan
    from mslaunch.plan.spec import JobSpec

Tell = Callable[[str], None]
Facts = Mapping[str, Mapping[str, Any]]
"""What each host has answered, by its name."""


class Channel(Protocol):
    """A two-way stream to the agents of one or more hosts. None of its methods waits for a host."""

    hosts: tuple[str, ...]
    """The names of the hosts whose agents it reaches."""
    hint: str
    """Where to look when no answer comes: one sentence, or nothing."""
    is_open: bool
    """False once the stream has ended; the launcher sets it too, for a host that it counts as lost."""

    def fileno(self) -> int:
        """Return the file descriptor that is readable when there is something to receive."""

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come, or None when the stream has ended. Called when fileno() is readable."""

    def send(self, message: Mapping[str, object]) -> None:
        """Queue a message for the host that it names in `to`, or for all. Called from two threads."""

    def flush(self) -> None:
        """Wait until all that was queued has been written, two seconds at most."""

    def why_it_ended(self) -> str:
        """Say why the stream ended before the job began, and what to do: sentences that follow the host's name."""

    def close(self) -> None:
        """End the stream, by which the agents end with all that they run, and free what it holds."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is needed to start agents."""

    python: str
    accept_new_keys: bool = False
    connect_timeout: float = 60.0
    """Seconds that a host may take until its agent answers, all tries included."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The channels to the hosts that could be reached, these hosts, and why others could not be."""

    channels: Sequence[Channel]
    hosts: tuple[Host, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobState:
    """How a queue sees a job."""

    state: RunStatus
    word: str
    """The queue's own word for it."""
    reason: str = ""
    """Why it waits."""
    ended: str | None = None
    is_finishing: bool = False
    """Whether the queue is ending what is left of it."""


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The queue's job that this process runs in."""

    job_id: str
    restarts: int
    """How often the queue has started it before."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command line that a submitted job runs, from what was typed."""

    program: tuple[str, ...]
    verb: str
    own: tuple[str, ...]
    """Options of the verb itself."""
    flags: Mapping[str, Any]
    assignments: tuple[str, ...]
    config: str | None
    """The text of the config, as it was when the job was submitted."""
    named: tuple[str, ...]
    """The words that name the program; they come after all options."""
    rank_table: str | None
    script_args: tuple[str, ...]


class JobQueue(Protocol):
    """A batch system: it starts the launcher of a submitted run, and its jobs are not ours to run."""

    label: str
    """Its name in sentences."""

    def current_job(self, environment: Mapping[str, str]) -> CurrentJob | None:
        """Return the job that this process runs in, if it is in one."""
        del environment
        return None

    def files(self, spec: JobSpec, plan: Plan, command: Command) -> list[File]:
        """Return what is submitted, for the run's folder."""

    def submit(self, run_dir: Path, secrets: Mapping[str, str] = ..., /) -> str:
        """Submit a run whose folder is complete, with `secrets` as MSLAUNCH_ENV_<name>; return the job's id."""

    def submit_array(
        self,
        folder: Path,
        members: Mapping[int, Path],
        at_once: int | None,
        secrets: Mapping[str, str] | None = None,
        /,
    ) -> str:
        """Submit several runs whose folders are complete as one job, and return its id; its script lies in `folder`."""
        del folder, members, at_once, secrets
        raise RequestError(f"sweeps are not submitted to {self.label} as one job. Submit the runs one by one.")

    def member(self, job: str, index: int) -> str:
        """Return the id of one member of such a job, whose own id or that of another member is given."""
        return f"{job}-{index}"

    def cancel_array(self, job: str) -> None:
        """Ask all members of such a job to end; those that wait do not start."""
        self.cancel(job)

    def state(self, job: str, since: float | None = None) -> JobState | None:
        """Return how a job stands, None where the queue cannot be asked. An answer may be `since` seconds old."""

    def is_queued(self, job: str) -> bool:
        """Tell whether a job waits for its start, at the least cost; False where an ended one never starts again."""
        del job
        return False

    def find(self, run_id: str) -> str | None:
        """Find the job of a run whose submitter died before it wrote the id down."""
        del run_id
        return None

    def cancel(self, job: str) -> None:
        """Ask a job to end."""

    def kill(self, job: str) -> None:
        """End a job that does not end when it is asked to."""

    def show_command(self, job: str, ended: bool = False) -> str:
        """Name the command that shows a job, or one that has ended."""

    def update(self, run_dir: Path, job: str) -> None:
        """Bring the run's folder up to date, where the launcher in the job does not write to it itself."""
        del run_dir, job

    def guard(self, is_kept: bool) -> AbstractContextManager[None]:
        """Return what surrounds submitting and following; a job that is not kept ends with its submitter."""
        del is_kept
        return nullcontext()


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job as its transport sees it."""

    spec: JobSpec
    hosts: tuple[Host, ...]
    """The hosts that it names."""
    environment: Mapping[str, str]
    """The variables of the launcher."""
    earlier_hosts: tuple[str, ...] = ()
    """The hosts of a run that is resumed, in the order of their ranks."""

    def is_typed(self, setting: str) -> bool:
        """Tell whether a setting was given as a flag of its own."""
        source = self.spec.sources[setting]
        return source.startswith("--") and not source.startswith("--set")


def ignore(text: str) -> None:
    """Show nobody a sentence."""
    del text


class Transport:
    """How a set of hosts is reached. A subclass says what differs from hosts that are named and cannot be shared."""

    name: ClassVar[str]
    label: ClassVar[str]
    """Its name in sentences."""
    needs_check: ClassVar[bool] = True
    """Hosts are asked what they have before anything is started; False where the only host is this machine."""
    can_be_cut_off: ClassVar[bool] = True
    """A host that falls silent is lost; otherwise the end of its stream tells."""
    ends_with_launcher: ClassVar[bool] = False
    """The agents' streams end when the launcher's machine is gone; otherwise agents count its silence."""
    runs_on_every_node: ClassVar[bool] = False
    """The command is meant to be typed on each node; otherwise several of it would launch the job several times."""
    shares_environment: ClassVar[bool] = False
    """Agents have this shell's variables; otherwise those that ranks need are sent."""
    stops_agents: ClassVar[bool] = False
    """SIGTERM reaches agents when the job as a whole is to end."""
    own_settings: ClassVar[tuple[str, ...]] = ()
    """For plug-ins: settings of built-in transports that this one understands too; the registry lists theirs."""
    device_variables: ClassVar[tuple[str, ...]] = ()
    """Variables on a host that list the devices it gives, the first that is set counts."""
    devices_advice: ClassVar[str] = 'with hosts, devices stand with each: --hosts "n1:[0-3],n2:8".'
    """What to do instead of --devices."""
    queue: ClassVar[JobQueue | None] = None
    """Where jobs are submitted when this process is in none of them."""
    replaces_hosts: ClassVar[bool] = False
    """Between attempts, hosts that were lost may come back, and others may come in their place."""
    resumes_runs: ClassVar[bool] = False
    """A launcher whose process was lost may be started again with the same --run-id, and goes on with that run."""

    def __init__(self, tell: Tell = ignore) -> None:
        self.tell = tell
        """Takes what a person should know while hosts are waited for."""

    def adapt(self, spec: JobSpec) -> JobSpec:
        """Return a job with its settings as this transport understands them."""
        return spec

    def membership(self, job: JobContext) -> Any:
        """Return how this process takes part in a job that another one launches; None where it is the launcher."""
        del job

    def notes(self, job: JobContext) -> tuple[str, ...]:
        """Say what was found out about the place of the launch."""
        del job
        return ()

    def check_request(self, job: JobContext) -> None:
        """Refuse a job that this transport cannot carry out."""
        if not job.hosts:
            raise RequestError(f'{job.spec.sources["transport"]}: which hosts? Name them with --hosts "n1:8,n2:8".')

    def hosts(self, job: JobContext) -> tuple[Host, ...]:
        """Return the hosts to connect to."""
        return job.hosts

    def planned_hosts(self, job: JobContext) -> tuple[Host, ...]:
        """Return hosts to plan with where none is contacted."""
        return job.hosts

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        """Start an agent on every host; name those that cannot be reached as problems, each with its fix."""
        raise NotImplementedError

    def replace_hosts(
        self, left: tuple[Host, ...], lost: tuple[Host, ...], wait: Callable[[float], None]
    ) -> tuple[list[Channel], tuple[Host, ...]]:
        """Wait for hosts in place of lost ones; return their channels, and all hosts of the next attempt in order.

        `wait` waits for so many seconds, and raises where somebody wants an end. Too few hosts are an error.
        """
        raise NotImplementedError

    def place(self, job: JobContext, hosts: tuple[Host, ...], facts: Facts, target: str) -> tuple[Host, ...]:
        """Give each host its devices, by what the hosts have answered."""
        del job, facts, target
        return hosts

    def pop_notes(self) -> list[str]:
        """Return what a person should be told by now, each once; called while a job runs."""
        return []

    def stopped_agents(self) -> Mapping[str, int]:
        """Return the agents that a signal has stopped, as host and process, where this machine can see them."""
        return {}

    def why_silent(self, hosts: Collection[str]) -> str:
        """Say why hosts are silent that are not lost, for example that their job is suspended; nothing otherwise."""
        del hosts
        return ""

    def finish(self, exit_code: int, record: Mapping[str, Any] | None, text: str = "") -> None:
        """Tell the hosts how the run ended, or why it did not begin; the channels are closed."""
        del exit_code, record, text

    def clean_up(self, run_dir: str) -> None:
        """End what is left of a run whose agents were lost, where this machine can see it; the channels are closed."""
        del run_dir

    def environment(self, method: Method, hosts: tuple[Host, ...]) -> Mapping[str, str]:
        """Return variables that all processes of a job need here."""
        del method, hosts
        return {}


def open_each(hosts: Sequence[Host], open_one: Callable[[Host], tuple[Host, Channel]]) -> Opened:
    """Open all hosts at once by `open_one`, which adds a host's address; an error becomes its trouble."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(host: Host) -> tuple[Host, Channel] | str:
        try:
            return open_one(host)
        except MslaunchError as error:
            return f"{host.name}: {error}"
        except OSError as error:
            return f"{host.name}: the agent could not be started: {error}."

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(attempt, hosts))
    opened = [result for result in results if not isinstance(result, str)]
    return Opened(
        channels=[channel for _, channel in opened],
        hosts=tuple(host for host, _ in opened),
        problems=tuple(result for result in results if isinstance(result, str)),
    )
