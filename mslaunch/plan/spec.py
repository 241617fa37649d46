"""What was asked, and the check that everything that names a number of ranks names the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mslaunch.errors import Disagreement, NoDevices, NotReadyError, RequestError
from mslaunch.hosts import LOCAL, Host, check_named_once, parse_hostfile, parse_hosts
from mslaunch.plan.model import Checkpoints
from mslaunch.ranges import format_ranges
from mslaunch.settings.launch import LaunchSettings
from mslaunch.settings.yaml_config import JobConfig
from mslaunch.shared.secret_names import is_secret

if TYPE_CHECKING:
    from mslaunch.plan.methods.method import Method
    from mslaunch.ranktable.servers import RankTable

TRAIN_SCRIPT = "train.py"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The job as requested: settings, the script's configuration, the method, and the script's arguments."""

    launch: LaunchSettings
    sources: Mapping[str, str]
    """Where each setting comes from."""
    config: JobConfig
    method: Method
    script_args: tuple[str, ...] = ()
    rank_table: RankTable | None = None
    checkpoints: Checkpoints | None = None
    default_script: str = TRAIN_SCRIPT
    """Looked for beside the config where no script is named; another verb's counts more than one the config names."""
    default_workers: int | None = None
    """How many ranks where nothing else says it."""
    notes: tuple[str, ...] = ()
    """What a person should know about the settings."""

    @property
    def secrets(self) -> dict[str, str | None]:
        """Variables for the ranks whose values are written nowhere; None where the environment has the value."""
        env = self.launch.env.items()
        return {name: value for name, value in sorted(env) if value is None or is_secret(name, value)}

    def with_run_id(self, run_id: str) -> JobSpec:
        """The same, for a run whose name has been chosen."""
        return replace(self, launch=replace(self.launch, run_id=run_id))

    def with_python(self, python: str, source: str) -> JobSpec:
        """The same, with another Python for its ranks."""
        launch = replace(self.launch, python=python)
        return replace(self, launch=launch, sources={**self.sources, "python": source})


def named_hosts(spec: JobSpec, hostfile: str | None) -> tuple[Host, ...]:
    """Return the hosts that were named, in the order given; none is this machine. `hostfile` is that file's text."""
    entries = spec.launch.hosts
    if entries is not None and spec.launch.hostfile is not None:
        raise RequestError(f"{spec.sources['hosts']} and {spec.sources['hostfile']} both name hosts. Give one of them.")
    if hostfile is not None:
        return parse_hostfile(hostfile, str(spec.launch.hostfile))
    if isinstance(entries, str):
        return parse_hosts(entries, spec.sources["hosts"])
    if entries is not None and not entries:
        raise RequestError(f"{spec.sources['hosts']}: names no host. Name one, or leave it out.")
    hosts = tuple(
        Host(entry.address, entry.address, entry.devices or (0,), entry.user, entry.port, entry.python, entry.env)
        for entry in entries or ()
    )
    check_named_once(hosts, spec.sources["hosts"])
    return hosts


def naming_setting(spec: JobSpec) -> str:
    """Say which setting named the hosts."""
    return spec.sources["hosts" if spec.launch.hosts is not None else "hostfile"]


def agree_on_workers(spec: JobSpec, devices: tuple[int, ...], hosts: tuple[Host, ...] = ()) -> int:
    """Return the number of ranks, or say which two places disagree about it."""
    claims: list[tuple[int, str]] = []
    if spec.launch.workers is not None:
        claims.append((spec.launch.workers, spec.sources["workers"]))
    if spec.launch.devices is not None:
        numbers = format_ranges(spec.launch.devices)
        claims.append((len(spec.launch.devices), f"{spec.sources['devices']} ({numbers})"))
    device_num = spec.config.values.get("device_num")
    if device_num not in (None, 1):
        claims.append((device_num, f"device_num in {spec.config.where('device_num')}"))
    if spec.rank_table is not None:
        claims.append((len(spec.rank_table.entries), f"the rank table {spec.rank_table.name}"))
    if hosts:
        claims.append((sum(len(host.devices) for host in hosts), "the hosts"))
    if not claims:
        return spec.default_workers or len(devices) or 1
    for claim in claims[1:]:
        if claim[0] != claims[0][0]:
            raise Disagreement("number of ranks", claims[0], claim, "Make them equal, or leave one out.")
    return claims[0][0]


def local_host(spec: JobSpec, workers: int, visible: tuple[int, ...], target: str, limit: str = "") -> Host:
    """Return this machine as the job's only host, with the devices that its ranks use.

    `limit` says what hides others of its devices.
    """
    devices = visible[:workers] if len(visible) >= workers else tuple(range(workers))
    if spec.launch.devices is not None:
        devices = spec.launch.devices
    elif spec.rank_table is not None:
        devices = tuple(entry.device_id for entry in spec.rank_table.entries)
    elif workers == 1 and spec.config.values.get("device_id") is not None:
        devices = (spec.config.values["device_id"],)
    if target != "CPU":
        missing = [device for device in devices if device not in visible]
        if missing and limit:
            raise NotReadyError(_not_visible(missing, workers, visible, limit))
        if missing and not visible:
            raise NoDevices(target, spec.config.where("device_target"))
        if missing:
            have = format_ranges(visible)
            raise NotReadyError(
                f"device {format_ranges(missing)} is not on this machine: {workers} ranks are asked for, and its "
                f"{target} devices are {have}. Ask for fewer --workers, or name others with --devices."
            )
    return Host(LOCAL, "127.0.0.1", devices)


def _not_visible(missing: list[int], workers: int, visible: tuple[int, ...], limit: str) -> str:
    request = f"{workers} ranks are asked for" if workers > 1 else "1 rank is asked for"
    wrong = f"device {format_ranges(missing)} is not visible: {request}, and {limit}"
    variable = limit.partition("=")[0]
    if not visible:
        return f"{wrong}. Change {variable}, or write device_target: CPU."
    return (
        f"{wrong}, which ranks number {format_ranges(visible)}. Ask for fewer --workers, name visible ones with "
        f"--devices, or change {variable}."
    )
