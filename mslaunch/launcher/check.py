"""Are the hosts ready? All agents are asked at once before anything starts; what is missing is named with its fix."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.errors import HostsNotReady, RunsFolderUnwritable
from mslaunch.hosts import Host
from mslaunch.launcher.attempt.event_check import Rejected, receive_checked
from mslaunch.launcher.facts import PORTS, describe_version
from mslaunch.ranges import format_ranges
from mslaunch.run.writing import why
from mslaunch.shared.probe import checksum
from mslaunch.shared.running_clock import RunningClock
from mslaunch.shared.visible_devices import DEVICE_FILES, VARIABLES
from mslaunch.text import describe_held, describe_limit
from mslaunch.transports.base import Channel, ignore
from mslaunch.transports.streams import Waiting


def converse(
    channels: Sequence[Channel],
    orders: Mapping[str, dict[str, Any]],
    answer: str,
    seconds: float,
    tell: Callable[[str], None] = ignore,
) -> dict[str, dict[str, Any]]:
    """Send each host its order and wait for all answers, as long as hosts answer; those that do not are named."""
    for channel in channels:
        for host in channel.hosts:
            if host in orders:
                channel.send({"to": host, **orders[host]})
    conversation = _Conversation(channels, set(orders), answer)
    clock = RunningClock()
    progress = clock.now
    waiting = Waiting(tell)
    while conversation.waiting and clock.now - progress < seconds:
        if conversation.receive():
            progress = clock.now
        waiting.look(clock.advance(), conversation.waiting)
    silent = {host: f"no answer within {seconds:.0f} s. {one.hint}" for one in channels for host in one.hosts}
    troubles = {**dict.fromkeys(orders, "it is no longer connected."), **silent, **conversation.troubles}
    if missing := sorted(orders.keys() - conversation.answers.keys()):
        raise HostsNotReady([f"{host}: {troubles[host]}" for host in missing])
    return conversation.answers


class _Conversation:
    """Hosts that have answered, that have still to answer, and that will not."""

    def __init__(self, channels: Sequence[Channel], hosts: set[str], answer: str) -> None:
        self.waiting = hosts
        self.answers: dict[str, dict[str, Any]] = {}
        self.troubles: dict[str, str] = {}
        self._answer = answer
        self._channels = {channel.fileno(): channel for channel in channels}
        self._poll = select.poll()
        for end in self._channels:
            self._poll.register(end, select.POLLIN)

    def receive(self) -> bool:
        """Wait a moment for what hosts send; return whether something has come."""
        has_come = False
        for end, _ in self._poll.poll(200):
            channel = self._channels[end]
            try:
                events = receive_checked(channel)
            except Rejected as rejected:
                self._give_up(channel, f"it {rejected}, so it cannot be trusted.")
                continue
            if events is None:
                self._give_up(channel, channel.why_it_ended())
                continue
            has_come = has_come or bool(events)
            for event in events:
                if event["ev"] == self._answer:
                    self.answers[event["host"]] = {**event, "heard": time.time()}
                    self.waiting.discard(event["host"])
        return has_come

    def _give_up(self, channel: Channel, why: str) -> None:
        self._poll.unregister(channel.fileno())
        self.waiting.difference_update(channel.hosts)
        for host in channel.hosts:
            self.answers.pop(host, None)
            self.troubles[host] = why


ANSWER_SECONDS = 30.0
REACH_SECONDS = 5.0
LEAST_ROOM = 32 << 20
SKEW_NOTICE = 2.0


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a job needs of its hosts."""

    run_dir: str
    script: str
    target: str | None = None
    needs_mindspore: bool = False
    port: int | None = None
    numa: bool = False
    share_devices: bool = False
    device_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the job that say which devices its ranks see."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one host answered."""

    host: Host
    facts: Mapping[str, Any]
    skew: float
    """How far its clock is ahead of this machine's, in seconds."""
    clock_error: float = 0.0
    """By how many seconds that may be wrong: half of what the way there and back took."""
    problems: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        return bool(self.facts["shared"])

    def device_limit(self, target: str) -> str:
        """Say what hides devices of this target, and which are left; nothing where all are visible."""
        return _device_limit(self.facts, target)


@dataclass(frozen=True, slots=True)
class Checked:
    """All hosts' answers, and the port that was found for the scheduler."""

    reports: Mapping[str, Report]
    port: int
    notes: tuple[str, ...] = field(default=())

    @property
    def problems(self) -> list[str]:
        return [f"{name}: {trouble}" for name, report in self.reports.items() for trouble in report.problems]


def check_hosts(
    channels: Sequence[Channel],
    hosts: Sequence[Host],
    wanted: Requirements,
    device_variables: tuple[str, ...] = (),
    tell: Callable[[str], None] = ignore,
) -> Checked:
    """Ask every host what it has and whether it reaches the first one's port; nothing is started."""
    with _nonce(Path(wanted.run_dir).parent) as nonce:
        probe = {"do": "probe", "run_dir": wanted.run_dir, "script": wanted.script, "numa": wanted.numa, **nonce}
        probe["device_variables"] = device_variables
        asked = time.time()
        orders = {host.name: {**probe, "env": _device_variables(host, wanted)} for host in hosts}
        answers = converse(channels, orders, "facts", ANSWER_SECONDS, tell)
    reports = {}
    first = answers[hosts[0].name]["facts"]
    for host in hosts:
        event = answers[host.name]
        skew, error = _compare_clocks(asked, event["heard"], event["facts"])
        problems = _problems(host, event["facts"], first, wanted, hosts[0].name)
        reports[host.name] = Report(host, event["facts"], skew, error, tuple(problems))
    port, unreached = _reach(channels, hosts, wanted.port)
    for name, reason in unreached.items():
        reports[name] = replace(reports[name], problems=(*reports[name].problems, reason))
    ahead = [(name, report.skew) for name, report in reports.items() if abs(report.skew) > SKEW_NOTICE]
    notes = tuple(f"{name}: its clock is {skew:+.1f} s off; times are corrected for it" for name, skew in ahead)
    notes += tuple(describe_version(first["mindspore"], first["python"]))
    return Checked(reports, port, notes)


def _compare_clocks(asked: float, answered: float, facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return how far a host's clock is ahead, and by how much that may be wrong, as NTP does."""
    began = facts["clock"]
    took = min(max(0.0, facts["took"]), answered - asked)
    skew = ((began - asked) + (began + took - answered)) / 2
    error = (answered - asked - took) / 2
    return (0.0 if abs(skew) <= error else skew), error


def _device_variables(host: Host, wanted: Requirements) -> dict[str, str]:
    own = {name: value for name, value in host.env.items() if name in VARIABLES.values()}
    return {**wanted.device_variables, **own}


def _device_limit(facts: Mapping[str, Any], target: str) -> str:
    limit = facts["limits"].get(target)
    hides = limit and len(limit["files"]) < limit["of"]
    return describe_limit(limit["by"], limit["files"], limit["of"], target) if limit and hides else ""


def _problems(
    host: Host, facts: Mapping[str, Any], first: Mapping[str, Any], wanted: Requirements, leader: str
) -> list[str]:
    problems = []
    if facts["version"].split(".")[:2] != first["version"].split(".")[:2]:
        problems.append(
            f"Python {facts['version']}, and {first['version']} on {leader}. Name the same one with launch.python."
        )
    if facts["mindspore"] is None and (wanted.needs_mindspore or first["mindspore"]):
        problems.append(f"{facts['python']} has no MindSpore. Install it there, or name another launch.python.")
    elif facts["mindspore"] != first["mindspore"]:
        problems.append(f"MindSpore {facts['mindspore']}, and {first['mindspore']} on {leader}. Install the same.")
    if facts["unwritable"]:
        problems.append(f"{facts['unwritable']}, so no run can be kept there. Give another --runs-dir.")
    elif facts["free"] < LEAST_ROOM:
        problems.append(f"the disk is full: {facts['free'] >> 20} MB are free for {wanted.run_dir}. Free some.")
    if facts["shared"] and facts["script"] not in (None, checksum(wanted.script)):  # one with the runs only has none
        problems.append(
            f"{wanted.script} differs from the one here, though the folder is shared. Wait for its file server."
        )
    if wanted.target in DEVICE_FILES:
        problems += _device_problems(host, facts, wanted.target, wanted.share_devices)
    return problems


def check_devices(hosts: Sequence[Host], checked: Checked, target: str, share: bool = False) -> None:
    """Make sure that hosts whose devices were not known when they were asked have them."""
    if target in DEVICE_FILES:
        found = {host.name: _device_problems(host, checked.reports[host.name].facts, target, share) for host in hosts}
        if problems := [f"{name}: {trouble}" for name, all_of_it in found.items() for trouble in all_of_it]:
            raise HostsNotReady(problems)


def _device_problems(host: Host, facts: Mapping[str, Any], target: str, share: bool) -> list[str]:
    stem = DEVICE_FILES[target]
    there = facts["devices"].get(target, ())
    missing = [device for device in host.devices if device not in there]
    if missing and (limit := _device_limit(facts, target)):
        fix = f"Name device {format_ranges(there)} in --hosts, or change it" if there else "Change it there"
        return [f"device {format_ranges(missing)} is not visible: {limit}. {fix}."]
    if missing:
        return [f"has {len(there)} {target} devices, not {', '.join(map(str, missing))}. Name others in --hosts."]
    held = {device: facts["held"][f"{stem}{device}"] for device in host.devices if f"{stem}{device}" in facts["held"]}
    if share or held:
        return describe_held(held) if not share else []
    busy = {device: facts["busy"][f"{stem}{device}"] for device in host.devices if f"{stem}{device}" in facts["busy"]}
    return [f"device {device} is in use by {who}. Wait for it, or name others." for device, who in busy.items()]


def find_port(channels: Sequence[Channel], host: str) -> int:
    """Have a host find a port that is free there."""
    answer = _listen(channels, host, None)
    _close_port(channels, host)
    if answer["port"] is None:
        raise HostsNotReady([f"{host}: no port is free there: {answer['why']}. Give one with --master-port."])
    return int(answer["port"])


def _listen(channels: Sequence[Channel], host: str, port: int | None) -> dict[str, Any]:
    choices = [secrets.choice(PORTS) for _ in range(16)]
    ask = {host: {"do": "listen", "port": port, "choices": choices}}
    return converse(channels, ask, "listening", ANSWER_SECONDS)[host]


def _close_port(channels: Sequence[Channel], host: str) -> None:
    for channel in channels:
        channel.send({"to": host, "do": "close-port"})


def _reach(channels: Sequence[Channel], hosts: Sequence[Host], port: int | None) -> tuple[int, dict[str, str]]:
    """Have the first host listen, and the others connect to it, as the ranks will."""
    leader = hosts[0]
    answer = _listen(channels, leader.name, port)
    if answer["port"] is None:
        return port or 0, {
            leader.name: f"port {port} cannot be listened on: {answer['why']}. Give another --master-port."
        }
    found = int(answer["port"])
    reach = {"do": "reach", "address": leader.address, "port": found, "seconds": REACH_SECONDS}
    answers = converse(channels, {host.name: reach for host in hosts}, "reached", ANSWER_SECONDS)
    _close_port(channels, leader.name)
    return found, {
        name: f"cannot connect to {leader.address} port {found}, where the scheduler will be: {event['why']}. "
        f"Open it in the firewall, or give --master-port one that is open."
        for name, event in answers.items()
        if event["why"]
    }


@contextmanager
def _nonce(folder: Path) -> Any:
    """A file with a random text: a host that reads the same shares the folder with this machine."""
    text = secrets.token_hex(16)
    path = folder / f".nonce-{text[:8]}"
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RunsFolderUnwritable(str(folder), why(error)) from None
    try:
        yield {"nonce": str(path), "nonce_text": text}
    finally:
        path.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
