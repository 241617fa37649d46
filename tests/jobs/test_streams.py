"""Terminals, pipes and sessions that come and go: the job and its record do not suffer."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess

import pytest

from tests.conftest import MSLAUNCH, Bench, wait_for

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def shell(bench: Bench, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    text = command.replace("mslaunch", shlex.quote(MSLAUNCH), 1)
    return subprocess.run(
        ["bash", "-c", text], cwd=bench.folder, env={**bench.env, **env}, capture_output=True, text=True, timeout=60
    )


def test_a_reader_that_has_seen_enough_does_not_end_the_job(bench: Bench) -> None:
    """`mslaunch train | head -1`: the job goes on to its end, and leaves nothing."""
    bench.write(
        "train.py",
        "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '77'])\n"
        "for i in range(20): print(i); time.sleep(0.02)\n",
    )
    shell(bench, "mslaunch train -n 2 | head -1")
    assert bench.record()["state"] == "succeeded"
    assert bench.leftovers() == []


def test_ctrl_c_works_when_the_reader_is_gone(bench: Bench) -> None:
    """Ranks get their SIGTERM and their grace, and the exit code is 130."""
    bench.write(
        "train.py",
        "import signal, sys, time\ndef save(*_):\n    open('saved', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(60)\n",
    )
    process = bench.start("train", "-n", "1")
    wait_for(lambda: bench.leftovers() and bench.log(0) == "ready\n", "the rank")
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert bench.record()["state"] == "stopped"
    assert (bench.work(0) / "saved").exists()


def test_a_stalled_terminal_stalls_nothing(bench: Bench) -> None:
    """Ranks write on, `stop` works, and the log is whole."""
    bench.write(
        "train.py", "for i in range(200000): print('x' * 99)\nprint('done', flush=True)\nimport time; time.sleep(60)\n"
    )
    process = bench.start("train", "-n", "1")
    wait_for(
        lambda: bench.leftovers() and (bench.latest / "rank_0" / "log.txt").stat().st_size == 20_000_005, "the output"
    )
    done = bench.mslaunch("stop")
    assert done.returncode == 0, done.stderr
    assert process.wait(timeout=60) == 143


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_are_no_reason_to_fail(bench: Bench, streams: str) -> None:
    """The job runs, and its exit code is right."""
    bench.write("train.py", "print('hello')\n")
    assert shell(bench, f"mslaunch train -n 1 {streams}").returncode == 0
    assert bench.log(0) == "hello\n"
    assert bench.record()["state"] == "succeeded"


def test_nohup_protects(bench: Bench) -> None:
    """A signal that is ignored at the start stays ignored."""
    bench.write("train.py", "import time\nprint('ready', flush=True)\ntime.sleep(2)\n")
    command = ["bash", "-c", f"trap '' HUP; exec {shlex.quote(MSLAUNCH)} train -n 1"]
    process = subprocess.Popen(command, cwd=bench.folder, env=bench.env, stdout=subprocess.DEVNULL)
    wait_for(bench.leftovers, "the rank")
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0


def test_status_of_a_running_job_shows_its_ranks(bench: Bench) -> None:
    """Pids and states are in run.json while the job runs."""
    bench.write("train.py", WAIT)
    bench.start("train", "-n", "2")
    wait_for(lambda: bench.leftovers() and all(rank["pid"] for rank in bench.record()["ranks"]), "the record")
    lines = bench.mslaunch("status").stdout.splitlines()
    assert [line.split()[4] for line in lines[-2:]] == ["running", "running"]
    bench.mslaunch("stop")


def test_stop_of_a_lost_run_waits_until_nothing_is_left(bench: Bench) -> None:
    """The launcher was killed; a rank that ignores SIGTERM is still gone when `stop` returns."""
    bench.write("train.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT)
    process = bench.start("train", "-n", "1")
    wait_for(lambda: bench.leftovers() and bench.log(0) == "ready\n", "the rank")
    process.kill()
    process.wait()
    assert bench.mslaunch("stop").stdout.endswith(": lost\n")
    assert bench.leftovers() == []


def test_the_guard_ends_its_own_run_only(bench: Bench) -> None:
    """Two runs in two folders may have the same name."""
    bench.write("train.py", WAIT)
    one = bench.start("train", "-n", "1", "--run-id", "exp1", "--runs-dir", "a")
    two = bench.start("train", "-n", "1", "--run-id", "exp1", "--runs-dir", "b")
    logs = [bench.folder / name / "exp1" / "rank_0" / "log.txt" for name in ("a", "b")]
    wait_for(lambda: all(log.exists() and log.read_text() for log in logs), "both")
    hello = json.loads((bench.folder / "a" / "exp1" / "events.jsonl").read_text().splitlines()[1])
    os.kill(hello["pid"], signal.SIGKILL)
    assert one.wait(timeout=60) == 125
    assert two.poll() is None
    two.send_signal(signal.SIGINT)
    assert two.wait(timeout=60) == 130


def test_a_long_set_up_is_waited_for_and_can_be_stopped(bench: Bench) -> None:
    """Longer than launch.host_lost_after; Ctrl-C ends it at once; its early exit is a failure."""
    bench.write("train.py", "import os\nprint(os.environ['READY'])\n")
    bench.write("cfg.yaml", "launch:\n  host_lost_after: 1\n  setup: sleep 2; export READY=yes\n  config_arg: null\n")
    assert "[rank 0] yes" in bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").stdout
    bench.write("cfg.yaml", "launch:\n  setup: sleep 60\n  config_arg: null\n")
    process = bench.start("train", "-n", "1", "-c", "cfg.yaml", "--run-id", "slow")
    wait_for(lambda: len(bench.leftovers()) >= 1, "the set-up")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    bench.write("cfg.yaml", "launch:\n  setup: exit 0\n  config_arg: null\n")
    assert bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").returncode == 3


def test_killing_the_agent_during_set_up_leaves_nothing(bench: Bench) -> None:
    """The set-up commands carry the run's mark like any rank."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", "launch:\n  setup: setsid sleep 79\n")
    process = bench.start("train", "-n", "1", "-c", "cfg.yaml")
    wait_for(lambda: len(bench.leftovers()) >= 2, "the set-up")
    hello = json.loads((bench.latest / "events.jsonl").read_text().splitlines()[1])
    os.kill(hello["pid"], signal.SIGKILL)
    assert process.wait(timeout=60) == 125
    wait_for(lambda: not bench.leftovers(), "the guard")


def test_foreign_folders_among_the_runs_are_passed_over(bench: Bench) -> None:
    """`ps` lists what it can read and says what it cannot."""
    bench.write("train.py", "")
    bench.mslaunch("train", "-n", "1", "--run-id", "good")
    bench.write("mslaunch-runs/old/run.json", "{}")
    done = bench.mslaunch("ps")
    assert done.returncode == 0
    assert "good" in done.stdout
    assert "old/run.json: not a record" in done.stderr


@pytest.mark.parametrize("method", ["mpirun", "rank-table"])
def test_other_methods_are_stopped_as_cleanly(bench: Bench, method: str, request: pytest.FixtureRequest) -> None:
    """Ctrl-C, the launcher's death and the death of what starts the ranks leave nothing behind."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write("train.py", WAIT)
    for name, code in (("stopped", 130), ("killed", -signal.SIGKILL), ("orphaned", 137)):
        process = bench.start("train", "-n", "2", "--method", method, "--run-id", name)
        wait_for(lambda: bench.leftovers() and bench.log(0) and bench.log(1), "both ranks")
        if name == "orphaned":
            os.kill(_script(bench), signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT if name == "stopped" else signal.SIGKILL)
        assert process.wait(timeout=60) == code
        wait_for(lambda: not bench.leftovers(), "the end")
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["cause"]) == (None, "script")


def _script(bench: Bench) -> int:
    events = (json.loads(line) for line in (bench.latest / "events.jsonl").read_text().splitlines())
    return next(int(event["pid"]) for event in events if event["ev"] == "started" and event["role"] == "script")


def test_a_writer_that_outlives_its_rank_does_not_hold_up_the_end(bench: Bench) -> None:
    """A daemon that goes on filling the log is ended like everything else, and the run ends as its rank did."""
    bench.write(
        "train.py",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for _ in range(20000):\n"  # at most 1.3 GB, should nobody end it
        "        os.write(1, b'x\\n' * (1 << 15))\n"
        "        time.sleep(0.0005)\n"
        "    os._exit(0)\n"
        "time.sleep(0.5)\n",
    )
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 0, done.stdout[-2000:]
    assert bench.record()["ranks"][0]["exit_code"] == 0
