"""Where waiting ends: the culprit of a hung or broken collective, and the chain of ranks that leads to it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mslaunch.diagnose.verdict import Step
from mslaunch.diagnose.waiting.graph import Peer, Wait
from mslaunch.text import counted

if TYPE_CHECKING:
    from mslaunch.diagnose.case import Case

End = Literal["error", "silent", "outside", "cycle", "link"]
_MOST_TRIED = 256  # places where a chain may begin, or a cycle be cut: thousands of ranks are judged in a moment
Graph = dict[Peer, list[Wait]]


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of processes, each of which waits for the next; the culprit is the last."""

    peers: tuple[Peer, ...]
    waits: tuple[Wait, ...]
    """The line behind each step; in a cycle the last one leads back."""
    end: End
    leading: tuple[Peer, ...]
    """Everybody who waits for the culprit, directly or through others."""

    @property
    def culprit(self) -> Peer:
        return self.peers[-1]


def find_chains(waits: Sequence[Wait], failed: Collection[int], waiting: Collection[int] = ()) -> list[Chain]:
    """Return a chain for each place where waiting ends, the most telling first.

    `failed` are the cases with an error of their own: they end a chain, whatever they complain of afterwards.
    `waiting` are those that wait as well, for they do not say whom: of equal ones they are suspected last.
    """
    graph: Graph = {}
    for wait in waits:
        graph.setdefault(wait.peer, [])
        if wait.waiter.case not in failed:
            graph.setdefault(wait.waiter, []).append(wait)
    backwards: dict[Peer, set[Peer]] = {peer: set() for peer in graph}
    for peer, out in graph.items():
        for wait in out:
            backwards[wait.peer].add(peer)
    chains = []
    for component in _components(graph):
        inside = set(component)
        leaves = any(wait.peer not in inside for peer in component for wait in graph[peer])
        if not leaves and any(backwards[peer] for peer in component):
            chains.append(_chain(graph, backwards, component, failed))
    return sorted(chains, key=lambda chain: _order(chain, waiting))


def _order(chain: Chain, waiting: Collection[int]) -> tuple[object, ...]:
    """An error of its own tells most, then the number of those who wait, then a log that can be read."""
    return (
        chain.end != "error",
        -len(chain.leading),
        chain.culprit.case in waiting,
        chain.culprit.case is None,
        min((wait.time for wait in chain.waits if wait.time is not None), default=float("inf")),
        chain.peers[0].rank or 0,
    )


def _chain(
    graph: Graph, backwards: Mapping[Peer, set[Peer]], component: Sequence[Peer], failed: Collection[int]
) -> Chain:
    reaching = _reaching(backwards, component)
    if len(component) > 1:
        around = _cycle(graph, component)
        inside = [wait.waiter for wait in around]
        path = _longest(graph, backwards, reaching, set(inside))
        at = inside.index(path[-1].peer) if path else 0
        waits = (*path, *around[at:], *around[:at])
        return Chain(tuple(wait.waiter for wait in waits), waits, "cycle", reaching)
    culprit = component[0]
    path = _longest(graph, backwards, reaching, {culprit})
    end: End = "silent" if culprit.case is not None else "outside"
    if culprit.case in failed and culprit.case is not None:
        end = "error"
    elif path and path[-1].is_link and culprit.case is None:
        end = "link"
    leading = tuple(peer for peer in reaching if peer != culprit)
    return Chain((*(wait.waiter for wait in path), culprit), tuple(path), end, leading)


def _reaching(backwards: Mapping[Peer, set[Peer]], component: Sequence[Peer]) -> tuple[Peer, ...]:
    """Return everybody from whom the component can be reached, itself included."""
    seen = dict.fromkeys(component)
    queue = deque(component)
    while queue:
        for peer in sorted(backwards[queue.popleft()], key=_name):
            if peer not in seen:
                seen[peer] = None
                queue.append(peer)
    return tuple(seen)


def _name(peer: Peer) -> tuple[object, ...]:
    return (peer.rank is None, peer.rank or 0, peer.case or 0, peer.host or "", peer.device or 0)


def _longest(
    graph: Graph, backwards: Mapping[Peer, set[Peer]], reaching: Sequence[Peer], ends: set[Peer]
) -> list[Wait]:
    """Return the longest of the chains that begin with somebody for whom nobody waits, each in the order of its log."""
    allowed = set(reaching)
    starts = [peer for peer in reaching if peer not in ends and not backwards[peer]]
    starts = starts or [peer for peer in reaching if peer not in ends]
    paths = [_follow(graph, start, allowed, ends) for start in sorted(starts, key=_name)[:_MOST_TRIED]]
    return max(paths, key=len, default=[])


def _follow(graph: Graph, start: Peer, allowed: set[Peer], ends: set[Peer]) -> list[Wait]:
    """Follow what each complained of first; where that leads in a circle, take the shortest way."""
    path: list[Wait] = []
    seen, at = {start}, start
    while at not in ends:
        wait = next((wait for wait in graph[at] if wait.peer in allowed and wait.peer not in seen), None)
        if wait is None:
            return _shortest(graph, start, ends)
        path.append(wait)
        at = wait.peer
        seen.add(at)
    return path


def _shortest(graph: Graph, start: Peer, ends: set[Peer]) -> list[Wait]:
    came: dict[Peer, Wait | None] = {start: None}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        if at in ends and at != start:
            path: list[Wait] = []
            step = came[at]
            while step is not None:
                path.append(step)
                step = came[step.waiter]
            return path[::-1]
        for wait in graph[at]:
            if wait.peer not in came:
                came[wait.peer] = wait
                queue.append(wait.peer)
    return []


def _cycle(graph: Graph, component: Sequence[Peer]) -> list[Wait]:
    """Return a shortest cycle, of those the one that was told first: two who wait for each other, if there are."""
    inside = set(component)
    within = {peer: [wait for wait in graph[peer] if wait.peer in inside] for peer in component}
    best: list[Wait] = []
    for wait in sorted((wait for out in within.values() for wait in out), key=_when)[:_MOST_TRIED]:
        back = _shortest(within, wait.peer, {wait.waiter})
        if back and (not best or len(back) + 1 < len(best)):
            best = [wait, *back]
        if len(best) == 2:
            break
    return best


def _when(wait: Wait) -> tuple[object, ...]:
    return (wait.time is None, wait.time or 0.0, _name(wait.waiter))


def _components(graph: Graph) -> list[list[Peer]]:
    """Return the strongly connected components (Tarjan, without recursion: a ring may have thousands of ranks)."""
    index: dict[Peer, int] = {}
    low: dict[Peer, int] = {}
    stack: list[Peer] = []
    on_stack: set[Peer] = set()
    components: list[list[Peer]] = []
    for root in graph:
        work = [(root, 0)] if root not in index else []
        while work:
            peer, at = work.pop()
            if at == 0:
                index[peer] = low[peer] = len(index)
                stack.append(peer)
                on_stack.add(peer)
            for number in range(at, len(graph[peer])):
                to = graph[peer][number].peer
                if to not in index:
                    work += [(peer, number + 1), (to, 0)]
                    break
                if to in on_stack:
                    low[peer] = min(low[peer], index[to])
            else:
                if low[peer] == index[peer]:
                    component = [stack.pop()]
                    while component[-1] != peer:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    components.append(component)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[peer])
    return components


_SHOWN = 6  # processes of a chain that a sentence names
_ENDS = {
    "error": "which failed by itself",
    "silent": "which left no error: look there first",
    "outside": "of which no log is here: look there first, and add its logs",
    "link": "of which no log is here: look at the link between both first, and add its logs",
}
END_OF_WAITING = ("silent", "outside", "cycle", "link")
"""The causes of a verdict where nobody shows an error of its own."""


def peer_words(peer: Peer | Step, log: str | None = None) -> str:
    """Name a process by what is known of it: rank, host and device, address, or the file that it wrote."""
    device = None if peer.device is None else f"device {peer.device}"
    if peer.rank is not None:
        place = ", ".join(part for part in (peer.host, device) if part)
        return f"rank {peer.rank} ({place})" if place else f"rank {peer.rank}"
    if device:
        return f"{device} of {peer.host}" if peer.host else f"{device} ({log or 'host unknown'})"
    port = getattr(peer, "port", None)
    return (f"{peer.host}:{port}" if port else peer.host) or log or "a process that nobody names"


def peer_name(peer: Peer, cases: Sequence[Case]) -> str:
    """Name a process by what is known of it, else by its log."""
    return peer_words(peer, None if peer.case is None else cases[peer.case].log)


def chain_words(chain: Chain, cases: Sequence[Case], ending: str | None) -> str:
    """Say in one line who waits for whom, where that ends, and how many ranks lead there."""
    names = [peer_name(peer, cases) for peer in chain.peers]
    if len(names) > _SHOWN:
        left = len(names) - _SHOWN + 1
        names[2 : 2 + left] = [f"{left} more in a row"]
    count = counted(len([peer for peer in chain.leading if peer.case is not None]), "rank")
    if chain.end == "cycle":
        reason = ending or "look at the link between them first"
        return f"{_cycle_words(chain, names)}: {reason} ({count} in it or waiting for it)"
    verbs = ["waits for"] * (len(names) - 1)
    if chain.end == "link":
        verbs[-1] = "lost the network link to"
    sentence = names[0] + ", which".join(f" {verb} {name}" for verb, name in zip(verbs, names[1:], strict=True))
    lead = "leads" if count == "1 rank" else "lead"
    return f"{sentence}, {ending or _ENDS[chain.end]} ({count} {lead} there)"


def _cycle_words(chain: Chain, names: Sequence[str]) -> str:
    around = next(number for number, wait in enumerate(chain.waits) if wait.waiter == chain.waits[-1].peer)
    size = len(chain.peers) - around
    if size == 2:
        into = "".join(f"{name} waits for the next; " for name in names[:-2])
        return f"{into}{names[-2]} and {names[-1]} wait for each other"
    return f"{', '.join(names)} wait for each other in a circle"


def steps_of(chain: Chain, cases: Sequence[Case], culprit_line: int | None) -> tuple[Step, ...]:
    """Return the chain as it is recorded, with the line behind each step, the culprit last."""
    lines: list[tuple[str | None, int | None]] = [(wait.log, wait.line) for wait in chain.waits]
    log = None if chain.culprit.case is None else cases[chain.culprit.case].log
    lines.append((log, culprit_line if log else None))  # a cycle has a wait for its last one as well
    return tuple(Step(peer.rank, peer.host, peer.device, *line) for peer, line in zip(chain.peers, lines, strict=False))
