"""Signals that come before a job has begun: one line and 128 plus the signal's number, never a traceback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.beds import ssh_bed
from tests.conftest import ROOT, Bench, wait_for

LOADING = "import os; from mslaunch import __main__; os.kill(os.getpid(), {number}); print('ignored')"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_load_ends_the_command_in_one_line(number: signal.Signals) -> None:
    """From the first module of ours on."""
    code = LOADING.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"mslaunch: ended by {number.name}\n")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """`nohup mslaunch train` survives the end of its terminal from its first moment on."""
    code = LOADING.format(number=int(signal.SIGHUP))
    done = subprocess.run(["nohup", sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ignored\n")


DROPPED = """
import os, signal
from mslaunch import __main__, interrupts
from mslaunch.signals import Signals
class Dropped:
    def __del__(self): os.kill(os.getpid(), signal.SIGINT)
interrupts.raise_them(True)
Dropped()
with Signals() as signals: print(signals.read())
"""


def test_an_interrupt_that_python_drops_still_ends_the_job() -> None:
    """One that is raised in a destructor goes nowhere; the loop of the job finds it as soon as it begins."""
    done = subprocess.run([sys.executable, "-c", DROPPED], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[2]\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_hosts_are_waited_for_leaves_nothing(
    far: Bench, hosts: ssh_bed.Bed, number: signal.Signals
) -> None:
    """No run, no connection and no further line."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        hosts.name_host("mute", "127.0.0.1", mute.getsockname()[1])
        launcher = far.start("train", "--hosts", "mute:1", "--run-id", "early")
        connection, _ = mute.accept()
        launcher.send_signal(number)
        out, _ = launcher.communicate(timeout=30)
        assert (launcher.returncode, out) == (128 + number, f"mslaunch: ended by {number.name}\n")
        with connection:
            wait_for(lambda: _has_ended(connection), "the connection to end")
    assert not (far.runs / "early").exists()


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


LATE = """
import os, signal
from mslaunch import interrupts
from mslaunch.signals import Signals
interrupts.end_at_once()
interrupts.raise_them(True)
with Signals() as signals:
    signals.settle(7)
for word in ("first", "second"):
    print(word, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
print("third")
"""


def test_a_signal_after_the_end_of_a_run_does_not_change_its_exit_code() -> None:
    """The first one is ignored, since the verdict is being printed; another one ends the command at once."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("first\nsecond\n", "", 7)
