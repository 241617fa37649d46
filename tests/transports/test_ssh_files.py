"""Hosts that do not share our folder: code goes there, and logs come home."""

from __future__ import annotations

import psutil

from tests.beds import ssh_bed
from tests.beds.ssh_bed import HELLO, SLEEP
from tests.conftest import Bench, wait_for

COUNTS = """import itertools, os, time
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(0.1)
    if os.path.exists("{seen}"):
        break
print("last")
"""


def test_files_go_to_hosts_that_do_not_share_them_and_logs_come_back(far: Bench, hosts: ssh_bed.Bed) -> None:
    """Code is sent, logs are collected, what was brought is removed; what the job wrote stays there and is said."""
    far.write("helper.py", "WORD = 'brought along'\n")
    far.write("train.py", HELLO + "import helper; print(helper.WORD); open('weights.bin', 'w').write('x')\n")
    with ssh_bed.apart(hosts, "own1", far.folder):
        done = far.mslaunch("train", "--hosts", "n1:1,own1:2", "--tail", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "brought along" in far.log(1)
    assert "[own1 rank 2] brought along" in done.stdout
    assert not (far.work(1) / "weights.bin").exists()
    assert f"own1 keeps 2 files that the job wrote: {far.latest}/rank_" in done.stdout


def test_logs_of_hosts_with_files_of_their_own_can_be_read_while_the_job_runs(far: Bench, hosts: ssh_bed.Bed) -> None:
    """What is new is fetched every few seconds, once; in the end the log is the same as over there."""
    seen = far.folder.parent / "seen"
    far.write("train.py", COUNTS.format(seen=seen))
    with ssh_bed.apart(hosts, "own4", far.folder):
        launcher = far.start("train", "--hosts", "n1:1,own4:1", "--tail", "none")
        wait_for(
            lambda: far.runs.exists() and "line 3" in far.mslaunch("logs", "--rank", "1").stdout, "its first lines"
        )
        assert launcher.poll() is None
        assert "last" not in far.log(1)
        seen.touch()
        assert launcher.wait(timeout=60) == 0
    *lines, last = far.log(1).splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert last == "last"


def test_a_failure_on_a_host_of_its_own_comes_home_with_its_log(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The verdict, in run.json and on the screen, has the traceback that was written over there."""
    far.write("disk.py", "def mount():\n    raise OSError('no such disk')\n")
    far.write("train.py", "import os\nif os.environ['RANK_ID'] == '1':\n    import disk\n    disk.mount()\n")
    with ssh_bed.apart(hosts, "own2", far.folder):
        done = far.mslaunch("train", "--hosts", "n1:1,own2:1")
    assert done.returncode == 1
    verdict = far.record()["verdict"]
    assert (verdict["rank"], verdict["host"], verdict["summary"]) == (1, "own2", "OSError: no such disk")
    code = far.folder
    assert verdict["traceback"].splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{code}/train.py", line 4, in <module>',
        "    disk.mount()",
        f'  File "{code}/disk.py", line 2, in mount',
        "    raise OSError('no such disk')",
        "OSError: no such disk",
    ]
    assert all(f"  {line}\n" in done.stdout for line in verdict["traceback"].splitlines())
    assert far.log(1) == verdict["traceback"]


def test_logs_of_a_lost_host_are_collected_later(far: Bench, hosts: ssh_bed.Bed) -> None:
    """The connection broke, the run failed; the host is back, and `collect` fetches what it still has."""
    far.write("train.py", SLEEP)
    with ssh_bed.apart(hosts, "own3", far.folder) as server:
        launcher = far.start("train", "--hosts", "n1:1,own3:1", "--tail", "1")
        assert launcher.stdout is not None
        wait_for(lambda: "rank 1 on own3" in str(launcher.stdout and launcher.stdout.readline()), "rank 1")
        for session in psutil.Process(server.pid).children():
            session.kill()
        assert launcher.wait(timeout=60) == 125
        assert far.log(1) == ""
        done = far.mslaunch("collect")
        assert done.returncode == 0, done.stderr
        assert "rank 1 on own3" in far.log(1)
    done = far.mslaunch("collect")
    assert done.returncode == 3
    assert "own3: cannot be reached" in done.stdout + done.stderr
    far.write("train.py", HELLO)
    assert far.mslaunch("train").returncode == 0
    assert "ran on this machine" in far.mslaunch("collect").stderr
