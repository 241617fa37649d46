"""Nodes that come to the launcher: each runs the same command, or lends itself with `mslaunch agent --join`."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from select import POLLIN, poll
from typing import Any

from mslaunch import __version__
from mslaunch.errors import ExitCode, HostsNotReady, NotReadyError, RequestError
from mslaunch.hosts import Host
from mslaunch.open_files import raise_limit
from mslaunch.plan.spec import JobSpec, agree_on_workers, naming_setting
from mslaunch.shared import guard, wire
from mslaunch.text import command_words, counted, limit_of_wait
from mslaunch.transports import prestart
from mslaunch.transports.base import Access, Channel, Facts, JobContext, Opened, Tell, Transport, ignore
from mslaunch.transports.join import role as parts
from mslaunch.transports.join.credentials import Secret, find_secret, how_to_give, own_secret, server_context
from mslaunch.transports.join.listener import MOST_GUESTS, Listener, Node, Places, listen, listen_everywhere
from mslaunch.transports.join.node import Member
from mslaunch.transports.join.role import Part
from mslaunch.transports.join.tls_stream import (
    AGENT,
    END,
    PIECE,
    Address,
    BrokenStream,
    frame,
    is_local,
    record_frame,
    resolve,
)
from mslaunch.transports.local import LocalChannel, stopped_agents
from mslaunch.transports.process import CLOSE_SECONDS, DRAIN_MS
from mslaunch.transports.streams import Sender

_LOOK_EVERY = 0.5
_TELL_EVERY = 1.0
_LAST_SECONDS = 2.0


class JoinTransport(Transport):
    """Hosts that nobody can reach, and that reach the launcher instead."""

    name = "join"
    label = "nodes that join"
    replaces_hosts = True
    resumes_runs = True
    runs_on_every_node = True
    ends_with_launcher = True  # TCP's keep-alive, which the kernel answers for a process that is stopped
    shares_environment = True  # every node has run a command of its own: its variables are right there
    devices_advice = "nodes that join say what they have. Give --workers-per-node instead."

    def __init__(self, tell: Tell = ignore) -> None:
        super().__init__(tell)
        self._sockets: list[socket.socket] | None = None
        self._listener: Listener | None = None
        self._part: Part | None = None
        self._own: Host | None = None
        self._nodes: dict[str, Node] = {}
        self._ranks: dict[str, int] = {}
        """The node rank of every host so far, by its name."""
        self._channels: list[NodeChannel] = []
        self._own_agent: LocalChannel | None = None

    def adapt(self, spec: JobSpec) -> JobSpec:
        return parts.with_port_of_master(spec)

    def check_request(self, job: JobContext) -> None:
        spec = job.spec
        if job.hosts:
            raise RequestError(f"{naming_setting(spec)}: nodes that join are not named. Leave it out.")
        if spec.method.reaches_hosts:
            raise RequestError(f"{spec.sources['method']}: {spec.method.name} reaches hosts by itself. Leave it out.")
        parts.settle(spec, job.environment)

    def notes(self, job: JobContext) -> tuple[str, ...]:
        return parts.settle(job.spec, job.environment).notes

    def membership(self, job: JobContext) -> Member | None:
        part = parts.settle(job.spec, job.environment)
        if part.is_launcher:
            return None
        if part.is_launcher is None:
            self._sockets = listen(part, _resolved(part, self.tell))
            if self._sockets is not None:
                return None
        return make_member(part, job.spec, job.environment, self.tell)

    def hosts(self, job: JobContext) -> tuple[Host, ...]:
        part = parts.settle(job.spec, job.environment)
        if part.is_launcher is False:
            join = command_words("mslaunch", "agent", "--join", part.place)
            raise RequestError(f"another node launches this job. Run {join} here.")
        sockets, self._sockets = self._sockets, None
        if sockets is None and part.master:
            sockets = listen(part, resolve(part.master, part.port))
        sockets = sockets or listen_everywhere(part)
        try:
            secret = _secret(job.spec, job.environment, lambda: [Address(s.family, s.getsockname()) for s in sockets])
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        raise_limit(part.most, per_host=1, extra=MOST_GUESTS)  # a node is one socket, and so is whoever knocks
        self._part = part
        launch = job.spec.launch
        places = Places(part.most, __version__, launch.max_restarts > 0)
        places.remember(job.earlier_hosts)
        self._own = None
        if part.lends_devices:
            name = places.hold(0, socket.gethostname())
            self._own = Host(name, "127.0.0.1", tuple(range(part.slots or 0)))
        self._listener = Listener(sockets, server_context(secret.value), places, launch)
        nodes = self._wait(part, self._listener)
        if self._own and nodes:
            self._own = replace(self._own, address=nodes[0].reached_at)
        nodes = self._listener.take()
        self._nodes |= {node.name: node for node in nodes}
        self._ranks = self._listener.places.ranks()
        own = () if self._own is None else (self._own,)
        return (*own, *(_host(node) for node in nodes))

    def _wait(self, part: Part, listener: Listener) -> list[Node]:
        """Wait until all nodes are there, or enough when the time is up."""
        own = 1 if part.lends_devices else 0
        until = time.monotonic() + part.timeout
        reported, tell_at = -1, 0.0
        while True:
            nodes = listener.waiting()
            for note in listener.pop_notes():
                self.tell(note)
            if len(nodes) + own >= part.most:
                return nodes
            if len(nodes) != reported and time.monotonic() >= tell_at:
                reported, tell_at = len(nodes), time.monotonic() + _TELL_EVERY
                come = f": {', '.join(node.name for node in nodes[:8])}" if nodes else ""
                whom = counted(part.most - own, "other node" if own else "node")
                wait = f"waiting at {part.place} for {whom}, up to {limit_of_wait(until - time.monotonic())}"
                self.tell(f"{wait}; {reported} joined{come}")
            if (left := until - time.monotonic()) <= 0:
                if len(nodes) + own >= part.fewest:
                    have = counted(len(nodes) + own, "node")
                    self.tell(
                        f"going on with {have} of {part.most} after {part.timeout:g} s (--nnodes, --join-timeout)"
                    )
                    return nodes
                come = ", ".join([*(["the launcher"] * own), *(node.name for node in nodes)]) or "none"
                have = (
                    f"{len(nodes) + own} of {counted(part.fewest, 'node')} are there after {part.timeout:g} s ({come})"
                )
                fix = "See what mslaunch shows on the others, or wait longer with --join-timeout."
                raise HostsNotReady([f"{part.place}: {have}. {fix}"])
            with listener.changed:
                if len(listener.waiting()) == len(nodes):
                    listener.changed.wait(min(left, _LOOK_EVERY))

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        del access
        channels: list[Channel] = []
        problems = []
        for host in hosts:
            if self._own is not None and host.name == self._own.name:
                channels.append(self._own_channel(host))
            elif host.name in self._nodes:
                channels.append(self._channel(self._nodes[host.name]))
            else:
                problems.append(f"{host.name}: it has joined by itself, and cannot be reached again. Look there.")
        return Opened(channels, hosts, tuple(problems))

    def _channel(self, node: Node) -> NodeChannel:
        assert self._listener is not None
        channel = NodeChannel(node, self._listener.places.leave)
        self._channels.append(channel)
        return channel

    def _own_channel(self, host: Host) -> LocalChannel:
        agent = prestart.start(host.name, host.python, reads_stdin=False)
        self._own_agent = LocalChannel(host.name, agent, wire.MAGIC)
        return self._own_agent

    def stopped_agents(self) -> Mapping[str, int]:
        return stopped_agents([self._own_agent] if self._own_agent else [])

    def replace_hosts(
        self, left: tuple[Host, ...], lost: tuple[Host, ...], wait: Callable[[float], None]
    ) -> tuple[list[Channel], tuple[Host, ...]]:
        assert self._listener is not None
        assert self._part is not None
        names = {host.name for host in lost}
        for channel in [channel for channel in self._channels if channel.hosts[0] in names]:
            text = "the agent of this node was lost"  # it may join again
            channel.conclude({"is": "end", "exit_code": ExitCode.LOST, "record": None, "text": text})
            channel.end()
            self._channels.remove(channel)
            self._nodes.pop(channel.hosts[0], None)
        own = [host for host in lost if self._own is not None and host.name == self._own.name]
        until = time.monotonic() + self._part.timeout
        while len(self._listener.waiting()) < len(lost) - len(own) and time.monotonic() < until:
            wait(_LOOK_EVERY)
        nodes = self._listener.take()
        if len(left) + len(own) + len(nodes) < self._part.fewest:
            for node in nodes:
                self._nodes[node.name] = node
            raise NotReadyError(f"no other node has come in place of {', '.join(sorted(names))}")
        ranks = self._listener.places.ranks()
        before = {self._ranks[host.name]: len(host.devices) for host in lost}
        hosts = [*left, *own, *(_host(node, before.get(node.rank)) for node in nodes)]
        self._ranks |= ranks
        channels: list[Channel] = [*map(self._own_channel, own), *map(self._channel, nodes)]
        return channels, tuple(sorted(hosts, key=lambda host: ranks[host.name]))

    def planned_hosts(self, job: JobContext) -> tuple[Host, ...]:
        part = parts.settle(job.spec, job.environment)
        nodes = max(1, part.most)
        names = [part.master if number == 0 and part.lends_devices else f"node{number}" for number in range(nodes)]
        ranks = agree_on_workers(job.spec, tuple(range(nodes * (part.slots or 1))))
        shares = [part.slots] * nodes if part.slots else _spread(ranks, nodes)
        return tuple(Host(name, name, tuple(range(share or 1))) for name, share in zip(names, shares, strict=True))

    def place(self, job: JobContext, hosts: tuple[Host, ...], facts: Facts, target: str) -> tuple[Host, ...]:
        default = parts.settle(job.spec, job.environment).slots
        has = {host.name: tuple(facts[host.name]["devices"].get(target, ())) for host in hosts}
        counts = [len(host.devices) or default or len(has[host.name]) or 1 for host in hosts]
        is_set = any(host.devices for host in hosts) or default is not None
        ranks = agree_on_workers(job.spec, tuple(range(sum(counts))))
        if ranks != sum(counts) and not is_set:
            counts = _spread(ranks, len(hosts))
        placed = zip(hosts, counts, strict=True)
        return tuple(
            replace(host, devices=has[host.name][:count] if len(has[host.name]) >= count else tuple(range(count)))
            for host, count in placed
        )

    def pop_notes(self) -> list[str]:
        return self._listener.pop_notes() if self._listener is not None else []

    def finish(self, exit_code: int, record: Mapping[str, Any] | None, text: str = "") -> None:
        """Tell all nodes how the run ended, also those that wait for a place, and let nobody in any more."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        opened = {channel.hosts[0] for channel in self._channels}
        spare = [node for node in self._nodes.values() if node.name not in opened]
        leave = listener.places.leave
        channels = [*self._channels, *(NodeChannel(node, leave) for node in (*spare, *listener.take()))]
        listener.close()
        end = {"is": "end", "exit_code": exit_code, "record": record, "text": text}
        for channel in channels:
            channel.conclude(end)
        for channel in channels:
            channel.end()
        self._channels, self._nodes = [], {}

    def clean_up(self, run_dir: str) -> None:
        guard.end_run(run_dir)


def lending_member(spec: JobSpec, environment: Mapping[str, str], tell: Callable[[str], None]) -> Member:
    """A node that only lends its devices."""
    launch = spec.launch
    host, port = parts.split_master(launch.master or "", "--join")
    if not host:
        raise RequestError("--join: which launcher? Write for example --join n0:29400.")
    part = Part(
        host,
        port or parts.PORT,
        rank=launch.node_rank,
        is_launcher=False,
        slots=launch.workers_per_node,
        timeout=launch.join_timeout,
    )
    return make_member(part, spec, environment, tell)


def make_member(part: Part, spec: JobSpec, environment: Mapping[str, str], tell: Callable[[str], None]) -> Member:
    """A node that joins, with its secret; where none was given, the master must be on this machine."""
    return Member(part, _secret(spec, environment, lambda: _resolved(part, tell)))


def _resolved(part: Part, tell: Callable[[str], None]) -> list[Address]:
    """The master's addresses, waited for until its name resolves."""
    until = time.monotonic() + part.timeout
    if part.master and not resolve(part.master, part.port):
        tell(f"waiting for the name {part.master} to resolve")
    while not (addresses := resolve(part.master, part.port)):
        if time.monotonic() > until:
            raise NotReadyError(
                f"{part.place}: the name does not resolve, after {part.timeout:g} s. Check the launcher's name."
            )
        time.sleep(_LOOK_EVERY)
    return addresses


def _secret(spec: JobSpec, environment: Mapping[str, str], addresses: Callable[[], list[Address]]) -> Secret:
    """The secret of a job; one that has none may use the loopback only, with a secret of this user's own."""
    launch = spec.launch
    secret = find_secret(launch.secret_file, spec.sources["secret_file"], launch.runs_dir, environment)
    if secret is not None:
        return secret
    if not is_local(addresses()):
        raise RequestError(
            f"nodes of other machines join only with a secret, and there is none. {how_to_give(launch.runs_dir)}"
        )
    return own_secret(environment)


def _host(node: Node, slots: int | None = None) -> Host:
    """A node as a host; `slots` are those of the one in whose place it comes."""
    devices = tuple(range(node.hello.slots or slots or 0))
    return Host(node.name, node.address, devices, python=node.hello.python)


def _spread(ranks: int, nodes: int) -> list[int]:
    """Spread ranks evenly over nodes, the first ones having one more."""
    if ranks < nodes:
        raise RequestError(f"there are {nodes} nodes, and only {counted(ranks, 'rank')}. Ask for more --workers.")
    each, more = divmod(ranks, nodes)
    return [each + (number < more) for number in range(nodes)]


class NodeChannel:
    """The agent's stream inside of the encrypted one; that stays open after the agent's end, for the last record."""

    def __init__(self, node: Node, on_gone: Callable[[str], None]) -> None:
        """`on_gone` is told the node's name when its connection has ended."""
        self.hosts: tuple[str, ...] = (node.name,)
        self.hint = f"See what mslaunch shows on {node.name} ({node.address})."
        self.is_open = True
        self._on_gone = on_gone
        self._stream = node.stream
        self._decoder = wire.Decoder()
        self._has_ended = False
        self._is_gone = False
        self._sender = Sender(self._stream.send)
        self._sender.send(frame(AGENT, wire.MAGIC))

    def fileno(self) -> int:
        return self._stream.sock.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        messages: list[dict[str, Any]] = []
        for kind, payload in self._frames():
            if kind == AGENT:
                messages += self._decoder.feed(payload)
            elif kind == END:
                self._has_ended = True
        if self._has_ended and not messages:
            self.is_open = False
            return None
        return messages

    def _frames(self) -> list[tuple[bytes, bytes]]:
        """Return what has come; the end of the agent is made an end of what can be read, so that it is noticed."""
        try:
            frames = self._stream.receive()
        except (BrokenStream, ssl.SSLError):
            frames = None
        if frames is None:
            if not self._has_ended:
                self._set_gone()
            return []
        if any(kind == END for kind, _ in frames):
            with suppress(OSError):
                self._stream.sock.shutdown(0)  # SHUT_RD
        return frames

    def send(self, message: Mapping[str, object]) -> None:
        data = wire.encode(message)
        for at in range(0, len(data), PIECE):
            self._sender.send(frame(AGENT, data[at : at + PIECE]))

    def flush(self) -> None:
        self._sender.flush()

    def why_it_ended(self) -> str:
        if self._is_gone:
            return f"it joined, and the connection to it was lost before the job began. {self.hint}"
        return f"it joined, and its agent ended before the job began. {self.hint}"

    def close(self) -> None:
        """End the agent, and wait until it has; a host that is lost is not waited for."""
        if not self.is_open:
            if not self._has_ended or self._is_gone:
                self.drop()
            return
        self._sender.send(frame(END))
        self._drain()
        self.is_open = False

    def _drain(self) -> None:
        poller = poll()
        poller.register(self.fileno(), POLLIN)
        until = time.monotonic() + CLOSE_SECONDS
        while not self._has_ended and time.monotonic() < until:
            if poller.poll(DRAIN_MS):
                self.receive()
        if not self._has_ended:
            self.drop()

    def conclude(self, record: Mapping[str, Any]) -> None:
        """Send the last record: how the run ended. By this time nothing else is sent, so no thread has to be woken."""
        if not self._is_gone:
            with suppress(OSError, ssl.SSLError):
                self._stream.send(record_frame(record), _LAST_SECONDS)

    def drop(self) -> None:
        """End the connection, once what was queued has been written."""
        self._set_gone()
        with suppress(OSError):
            self._stream.sock.shutdown(2)  # SHUT_RDWR: ends a sender that waits for a peer that is gone
        self._sender.close()

    def _set_gone(self) -> None:
        self._is_gone = self._has_ended = True
        self._on_gone(self.hosts[0])

    def end(self) -> None:
        """Close the connection after the last record."""
        self.drop()
        self._stream.close()
