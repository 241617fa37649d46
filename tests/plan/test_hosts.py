"""The grammar of hosts."""

from __future__ import annotations

import pytest

from mslaunch.errors import RequestError
from mslaunch.hosts import Host, parse_hosts


def test_counts_lists_and_ranges_of_devices() -> None:
    """`n1:8` is a count; `n2:[0-3,6]` and `n3:0-1` name devices; a bare host has one."""
    assert parse_hosts("n1:2, n2:[0-1,6],n3:2-3,n4") == (
        Host("n1", "n1", (0, 1)),
        Host("n2", "n2", (0, 1, 6)),
        Host("n3", "n3", (2, 3)),
        Host("n4", "n4", (0,)),
    )


def test_ipv6_stands_in_brackets() -> None:
    """An address with colons is told from its devices by brackets."""
    assert parse_hosts("[fe80::1]:2,[::1]") == (Host("fe80::1", "fe80::1", (0, 1)), Host("::1", "::1", (0,)))


@pytest.mark.parametrize("text", ["", "n1:0", "n1:x", "n1:8;n2:8", "n1:8 n2:8", "n1:[0", "n1,n1:2", "n1:99999999"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    """A slip in the list of hosts is never a silent local run."""
    with pytest.raises(RequestError, match="--hosts"):
        parse_hosts(text)
