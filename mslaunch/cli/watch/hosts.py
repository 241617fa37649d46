"""Names of hosts in the room that a table has for them: what tells them apart stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from mslaunch.words import plain, shorten_middle

LEAST = 12
"""Columns that names have in the narrowest table."""
_TO_SEPARATOR = re.compile(r".*[-._]")


def name_variants(hosts: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield what hosts can be called, from their whole names to the shortest ones."""
    names = {host: plain(host) for host in hosts}
    yield names
    without = _without_domain(names)
    yield without
    short = {host: _cut(name, _prefix(without)) for host, name in without.items()}
    yield short
    yield {host: shorten_middle(name, LEAST) for host, name in short.items()}


def _without_domain(names: dict[str, str]) -> dict[str, str]:
    """Return names without the domain that all of them have; addresses stay as they are."""
    parts = {host: name.partition(".") for host, name in names.items()}
    domains = {domain for _, _, domain in parts.values()}
    is_common = len(domains) == 1 and not any(head.isdigit() for head, _, _ in parts.values())
    return {host: head for host, (head, _, _) in parts.items()} if is_common else names


def _prefix(names: dict[str, str]) -> int:
    """Return how long the beginning is that all names have, up to a separator."""
    low, high = min(names.values()), max(names.values())
    common = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    found = _TO_SEPARATOR.match(low[:common])
    return found.end() if found else 0


def _cut(name: str, start: int) -> str:
    return f"…{name[start:]}" if start > 1 else name
