"""Hosts whose login shell writes to standard error now and then: pyenv, motd, warnings about a locale."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.beds import ssh_bed
from tests.conftest import Bench, wait_for

NAMES = ("loud1", "loud2", "loud3", "loud4")
LOUD = ",".join(f"{name}:1" for name in NAMES)


@pytest.fixture
def loud(hosts: ssh_bed.Bed) -> Iterator[str]:
    with ssh_bed.noisy(hosts, *NAMES) as option:
        yield option


def test_noisy_hosts_are_checked(far: Bench, loud: str) -> None:
    """Phase by phase, starting with the check."""
    del loud
    done = far.mslaunch("check", "--hosts", LOUD)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_on_noisy_hosts_starts_runs_and_ends(far: Bench, loud: str) -> None:
    """What the ranks print comes through; what the shells say does not."""
    del loud
    far.write("train.py", ssh_bed.HELLO + "import time; time.sleep(2); print('still here')\n")
    done = far.mslaunch("train", "--hosts", LOUD, "--tail", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("still here") == 4
    assert "a word from the login shell" not in done.stdout + done.stderr


def test_a_job_on_noisy_hosts_can_be_stopped(far: Bench, loud: str) -> None:
    """Ctrl-C is answered, and nothing is left."""
    del loud
    far.write("train.py", ssh_bed.SLEEP)
    launcher = far.start("train", "--hosts", LOUD)
    wait_for(lambda: len(far.leftovers()) == 4, "the ranks")
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert (launcher.returncode, far.leftovers()) == (130, [])


def test_logs_of_a_noisy_host_come_home(far: Bench, hosts: ssh_bed.Bed, loud: str) -> None:
    """A host with files of its own gets the code and gives its logs back."""
    with ssh_bed.apart(hosts, "loud-island", far.folder, options=loud):
        done = far.mslaunch("train", "--hosts", f"{LOUD},loud-island:1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on loud-island" in far.log(4)


def test_the_words_of_a_host_without_python_are_kept(far: Bench, loud: str) -> None:
    """Of all that came on standard error, the line that tells why the agent does not start is shown."""
    del loud
    done = far.mslaunch("train", "--hosts", "loud1:1", "--set", "launch.python=/no/python")
    assert done.returncode == 3
    assert "the agent could not start: sh: 1: /no/python: not found" in " ".join(done.stderr.split())
