"""`ps`, `status`, `logs`, `stop` and --detach."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from mslaunch.cli import VERBS
from mslaunch.store.record import ENDED
from tests.conftest import MSLAUNCH, Bench, wait_for

TALK = "import os\nfor i in range(3): print('rank', os.environ['RANK_ID'], 'line', i)\n"
UNTIL_GO = """import os, time
print("first")
while not os.path.exists("go"):
    time.sleep(0.02)
print("last")
"""


def test_ps_and_status_tell_how_runs_ended(bench: Bench) -> None:
    """One line a run in `ps`; ranks and verdict in `status`; the same as JSON."""
    bench.write("train.py", TALK)
    bench.write("bad.py", "raise SystemExit(4)\n")
    bench.mslaunch("train", "-n", "2", "--run-id", "good")
    bench.mslaunch("train", "-n", "2", "bad.py", "--run-id", "bad")
    lines = bench.mslaunch("ps").stdout.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["RUN", "STATE", "CODE", "RANKS"],
        ["good", "succeeded", "0", "2"],
        ["bad", "failed", "4", "2"],
    ]
    assert [run["run_id"] for run in json.loads(bench.mslaunch("ps", "--json").stdout)] == ["good", "bad"]
    status = bench.mslaunch("status").stdout
    assert status.startswith("bad: failed, exit code 4")
    assert "First to fail: rank " in status
    assert "good: succeeded" in bench.mslaunch("status", "go").stdout


def test_a_run_is_named_by_an_unambiguous_beginning(bench: Bench) -> None:
    """What fits none or several is refused; an exact name always fits."""
    bench.write("train.py", TALK)
    for name in ("abc", "abd", "ab"):
        bench.mslaunch("train", "-n", "1", "--run-id", name)
    assert bench.mslaunch("status", "abc").returncode == 0
    assert bench.mslaunch("status", "ab").stdout.startswith("ab:")
    ambiguous = bench.mslaunch("status", "a")
    assert ambiguous.returncode == 2
    assert "fits 3 runs" in ambiguous.stderr
    assert "no run starts with 'zz'" in bench.mslaunch("status", "zz").stderr


def test_no_runs_is_said_with_the_fix(bench: Bench) -> None:
    """A newcomer who types `mslaunch status` first learns what to do."""
    for verb in ("status", "logs", "stop"):
        done = bench.mslaunch(verb)
        assert done.returncode == 2
        assert "no runs here yet" in done.stderr
    assert bench.mslaunch("ps").returncode == 0


def test_logs_of_one_rank_are_the_file_and_of_many_are_prefixed(bench: Bench) -> None:
    """--rank, --grep and --lines choose; a rank that does not exist is refused."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "3")
    assert bench.mslaunch("logs", "--rank", "1").stdout == bench.log(1)
    assert sorted(bench.mslaunch("logs", "--rank", "0,2", "--lines", "1").stdout.splitlines()) == [
        "[rank 0] rank 0 line 2",
        "[rank 2] rank 2 line 2",
    ]
    assert sorted(bench.mslaunch("logs", "--grep", r"line [01]$", "--lines", "1").stdout.splitlines()) == [
        f"[rank {rank}] rank {rank} line 1" for rank in range(3)
    ]
    assert "which has 3 ranks" in bench.mslaunch("logs", "--rank", "3").stderr
    assert "not a regular expression" in bench.mslaunch("logs", "--grep", "(").stderr


def test_logs_follow_until_the_run_ends(bench: Bench) -> None:
    """Following starts before the log exists and ends by itself with the run."""
    bench.write("train.py", UNTIL_GO)
    run = bench.start("train", "-n", "2")
    wait_for(lambda: bench.runs.exists() and (bench.latest / "run.json").exists(), "the run")
    follower = bench.start("logs", "-f", "--rank", "1")
    wait_for((bench.latest / "rank_1" / "env.log").exists, "rank 1")
    for rank in (0, 1):
        (bench.latest / f"rank_{rank}" / "go").touch()
    run.communicate(timeout=60)
    assert follower.communicate(timeout=60)[0] == "first\nlast\n"
    assert follower.returncode == 0


def test_a_detached_run_goes_on_by_itself(bench: Bench) -> None:
    """The command returns at once; the job outlives it, and its console is in launcher.log."""
    bench.write("train.py", UNTIL_GO)
    done = bench.mslaunch("train", "-n", "2", "--detach", "--run-id", "d1")
    assert done.returncode == 0, done.stderr
    assert "mslaunch logs -f d1" in done.stdout
    assert json.loads(bench.mslaunch("status", "--json").stdout)["state"] == "running"
    wait_for((bench.latest / "rank_1" / "env.log").exists, "the ranks")
    for rank in (0, 1):
        (bench.latest / f"rank_{rank}" / "go").touch()
    wait_for(lambda: bench.record()["state"] == "succeeded", "the end")
    assert "[rank 0] last" in (bench.latest / "launcher.log").read_text()


@pytest.mark.parametrize("detached", [True, False])
def test_stop_ends_a_run_and_waits_for_it(bench: Bench, detached: bool) -> None:
    """When `stop` returns, nothing of the run is left; stopping again says so and does no harm."""
    bench.write("train.py", "import time\ntime.sleep(60)\n")
    process = bench.start("train", "-n", "2", *(["--detach"] if detached else []))
    wait_for(lambda: len(bench.leftovers()) == 2, "both ranks")
    done = bench.mslaunch("stop")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": stopped\n")
    assert bench.leftovers() == []
    process.communicate(timeout=60)
    assert process.returncode == (0 if detached else 143)
    assert bench.record()["exit_code"] == 143
    assert bench.mslaunch("stop").stdout.endswith(": stopped\n")


def test_a_closed_terminal_does_not_end_a_detached_run(bench: Bench) -> None:
    """SIGHUP reaches everything in the session of that terminal; the launcher has a session of its own."""
    bench.write("train.py", UNTIL_GO)
    screen, terminal = os.openpty()
    command = ["setsid", "--ctty", "bash", "-c", '"$@"; cat', "bash", MSLAUNCH, "train", "-n", "1", "--detach"]
    shell = subprocess.Popen(command, cwd=bench.folder, env=bench.env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    wait_for(lambda: bench.runs.exists() and (bench.latest / "rank_0" / "env.log").exists(), "the rank")
    sessions = [os.getsid(pid) for pid in (shell.pid, bench.record()["launcher"]["pid"])]
    os.close(screen)
    assert shell.wait(timeout=60) == -signal.SIGHUP
    (bench.latest / "rank_0" / "go").touch()
    wait_for(lambda: bench.record()["state"] in ENDED, "the end")
    assert (bench.record()["state"], bench.record()["exit_code"]) == ("succeeded", 0)
    assert sessions[0] == shell.pid != sessions[1]


def test_reading_verbs_survive_a_closed_pipe(bench: Bench) -> None:
    """`mslaunch logs | head` ends quietly."""
    bench.write("train.py", "for i in range(20000): print('x' * 100)\n")
    bench.mslaunch("train", "-n", "1", "--tail", "none")
    process = bench.start("logs")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) in (0, -signal.SIGPIPE)


def test_unknown_verbs_and_options_are_refused(bench: Bench) -> None:
    """Exit code 2 with a suggestion; help is exit code 0 and plain text."""
    assert "did you mean 'train'?" in bench.mslaunch("trian").stderr
    assert bench.mslaunch("trian").returncode == 2
    assert bench.mslaunch("train", "--wrokers", "2").returncode == 2
    for verb in VERBS:
        done = bench.mslaunch(verb, "--help")
        assert done.returncode == 0
        assert f"Usage: mslaunch {verb}" in done.stdout
    assert "mslaunch train --workers 8 --config cfg.yaml" in bench.mslaunch("--help").stdout
    assert json.loads(bench.mslaunch("config", "schema").stdout)["properties"]["launch"]


def test_render_and_train_take_no_runs_along(bench: Bench) -> None:
    """Neither earlier runs nor rendered folders are part of the job's code."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "1")
    done = bench.mslaunch("render", "--method", "rank-table", "-n", "2", "train.py", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (bench.folder / "out" / "code").iterdir()] == ["train.py"]
    bench.mslaunch("train", "-n", "1")
    assert [path.name for path in (bench.latest / "code").iterdir()] == ["train.py"]


def test_ranks_that_were_stopped_did_not_fail(bench: Bench) -> None:
    """`status` tells the one that failed from those that were ended because of it."""
    bench.write("train.py", "import os, time\nif os.environ['RANK_ID'] == '1': raise SystemExit(4)\ntime.sleep(60)\n")
    bench.mslaunch("train", "-n", "3")
    rows = [line.split() for line in bench.mslaunch("status").stdout.splitlines()[4:7]]
    assert [row[4] for row in rows] == ["stopped", "failed", "stopped"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("train", "-n", "1", "cfg.yaml"), "Did you mean --config cfg.yaml?"),
        (("train", "-n", "1", "train.py", "--lr", "0.1"), "Put the script's arguments after --."),
        (("train", "-n", "1", "train.py", "--method", "rank_table"), "did you mean 'rank-table'"),
        (("diagnose", "/no/such/folder"), "neither a run nor a folder of logs"),
    ],
)
def test_common_slips_are_answered_with_the_fix(bench: Bench, args: tuple[str, ...], words: str) -> None:
    """Exit code 2, and what was probably meant."""
    bench.write("train.py", TALK)
    bench.write("cfg.yaml", "a: 1\n")
    done = bench.mslaunch(*args)
    assert done.returncode == 2
    assert words in done.stderr


def test_launch_keys_outside_of_launch_are_noted(bench: Bench) -> None:
    """`workers: 2` at the top level is the script's, which is hardly what was meant."""
    bench.write("train.py", TALK)
    bench.write("cfg.yaml", "workers: 2\n")
    assert "did you mean launch.workers?" in bench.mslaunch("train", "-c", "cfg.yaml", "-n", "1").stdout
