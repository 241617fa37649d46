"""The grammar of hosts."""

from __future__ import annotations

import pytest

from mslaunch.errors import RequestError
from mslaunch.hosts import Host, parse_hosts
from mslaunch.plan.methods import METHODS
from mslaunch.plan.spec import JobSpec, named_hosts
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import parse_config


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


def hosts_of(hosts: str) -> tuple[Host, ...]:
    """Read launch.hosts of a YAML."""
    config = parse_config(f"launch:\n  hosts: {hosts}\n", "cfg.yaml")
    settings = resolve({}, {}, config)
    return named_hosts(JobSpec(settings.values, settings.sources, config, METHODS["dynamic"]), None)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ('["n1:2"]', [("n1", (0, 1))]),
        ('["n1:2", "n2:[1,3],n3"]', [("n1", (0, 1)), ("n2", (1, 3)), ("n3", (0,))]),
        ('["n1:2", {address: n2, devices: 0-1}]', [("n1", (0, 1)), ("n2", (0, 1))]),
    ],
)
def test_a_list_in_the_yaml_may_hold_texts(hosts: str, expected: list[tuple[str, tuple[int, ...]]]) -> None:
    """Each is written as for --hosts, also beside entries with keys."""
    assert [(host.name, host.devices) for host in hosts_of(hosts)] == expected


def test_a_host_that_is_named_twice_in_a_list_is_refused() -> None:
    """Its devices would be given to two sets of ranks."""
    with pytest.raises(RequestError, match="n1 is named twice"):
        hosts_of('["n1:2", {address: n1}]')
