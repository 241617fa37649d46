"""A chain of waiting in words, and as it stands in a record."""

from __future__ import annotations

from collections.abc import Sequence

from mslaunch.diagnose.chain import Chain
from mslaunch.diagnose.verdict import Step
from mslaunch.diagnose.waiting import Peer
from mslaunch.words import counted

_SHOWN = 6  # processes of a chain that a sentence names
_ENDS = {
    "error": "which failed by itself",
    "silent": "which left no error: look there first",
    "outside": "of which no log is here: look there first, and add its logs",
    "link": "of which no log is here: look at the link between both first, and add its logs",
}
END_OF_WAITING = ("silent", "outside", "cycle", "link")
"""The causes of a verdict where nobody shows an error of its own."""
_LAST_VERB = {"link": "lost the network link to"}


def peer_words(peer: Peer | Step, log: str | None = None) -> str:
    """Name a process by what is known of it: rank, host and device, address, or the file that it wrote."""
    device = None if peer.device is None else f"device {peer.device}"
    if peer.rank is not None:
        known = ", ".join(part for part in (peer.host, device) if part)
        return f"rank {peer.rank} ({known})" if known else f"rank {peer.rank}"
    if device:
        return f"{device} of {peer.host}" if peer.host else f"{device} ({log or 'host unknown'})"
    port = getattr(peer, "port", None)
    return (f"{peer.host}:{port}" if port else peer.host) or log or "a process that nobody names"


def chain_words(chain: Chain, logs: Sequence[str], ending: str | None = None) -> str:
    """Say in one line who waits for whom, where that ends, and how many ranks lead there."""
    names = [peer_words(peer, None if peer.case is None else logs[peer.case]) for peer in chain.peers]
    if len(names) > _SHOWN:
        left = len(names) - _SHOWN + 1
        names[2 : 2 + left] = [f"{left} more in a row"]
    count = counted(len([peer for peer in chain.leading if peer.case is not None]), "rank")
    if chain.end == "cycle":
        reason = ending or "look at the link between them first"
        return f"{_cycle_words(chain, names)}: {reason} ({count} in it or waiting for it)"
    verbs = [*["waits for"] * (len(names) - 2), _LAST_VERB.get(chain.end, "waits for")]
    words = names[0] + ", which".join(f" {verb} {name}" for verb, name in zip(verbs, names[1:], strict=True))
    lead = "leads" if count == "1 rank" else "lead"
    return f"{words}, {ending or _ENDS[chain.end]} ({count} {lead} there)"


def _cycle_words(chain: Chain, names: Sequence[str]) -> str:
    around = next(number for number, wait in enumerate(chain.waits) if wait.waiter == chain.waits[-1].peer)
    size = len(chain.peers) - around
    if size == 2:
        into = "".join(f"{name} waits for the next; " for name in names[:-2])
        return f"{into}{names[-2]} and {names[-1]} wait for each other"
    return f"{', '.join(names)} wait for each other in a circle"


def steps_of(chain: Chain, logs: Sequence[str], culprit_line: int | None) -> tuple[Step, ...]:
    """Return the chain as it is recorded, with the line behind each step, the culprit last."""
    steps = []
    for number, peer in enumerate(chain.peers):
        if number < len(chain.waits):
            wait = chain.waits[number]
            steps.append(Step(peer.rank, peer.host, peer.device, wait.log, wait.line))
        else:
            log = None if peer.case is None else logs[peer.case]
            steps.append(Step(peer.rank, peer.host, peer.device, log, culprit_line if log else None))
    return tuple(steps)
