"""`ps`, `status`, `logs`, `stop` and --detach."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mslaunch.run import find
from mslaunch.run.record import ENDED
from tests.beds.watch_bed import make_run
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
    bench.mslaunch("train", "-n", "2", "--run-id", "bad", "bad.py")
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


def test_status_tells_that_a_running_job_makes_no_step(bench: Bench) -> None:
    """And no speed, which was that of then."""
    run = make_run(bench.runs, 2)
    run.step(7, time.time() - 47)
    shown = bench.mslaunch("status").stdout
    assert "epoch 1/2 step 7/500 | loss 1.25 | no step for 4" in shown
    assert "steps/s" not in shown


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
    assert "no run has 'zz'" in bench.mslaunch("status", "zz").stderr


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
    assert bench.mslaunch("logs", "--rank", "all").stdout == bench.mslaunch("logs").stdout
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
        (bench.work(rank) / "go").touch()
    run.communicate(timeout=60)
    assert follower.communicate(timeout=60)[0] == "first\nlast\n"
    assert follower.returncode == 0


def test_a_detached_run_goes_on_by_itself(bench: Bench) -> None:
    """The command returns at once; the job outlives it, and its console is in launcher.log."""
    bench.write("train.py", UNTIL_GO)
    done = bench.mslaunch("train", "-n", "2", "--detach", "--run-id", "d1")
    assert done.returncode == 0, done.stderr
    assert "mslaunch attach d1" in done.stdout
    assert json.loads(bench.mslaunch("status", "--json").stdout)["state"] == "running"
    wait_for((bench.latest / "rank_1" / "env.log").exists, "the ranks")
    for rank in (0, 1):
        (bench.work(rank) / "go").touch()
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
    (bench.work(0) / "go").touch()
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
    done = bench.mslaunch("train", "--help")
    assert done.returncode == 0
    assert "Usage: mslaunch train" in done.stdout
    assert "mslaunch train --workers 8 --config cfg.yaml" in bench.mslaunch("--help").stdout
    assert json.loads(bench.mslaunch("config", "schema").stdout)["properties"]["launch"]


def test_render_and_train_take_no_runs_along(bench: Bench) -> None:
    """Neither earlier runs nor rendered folders are part of the job's code."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "1")
    done = bench.mslaunch("render", "--method", "rank-table", "-n", "2", "-o", "out", "train.py")
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
        (("train", "-n", "1", "--lr", "0.1", "train.py"), "What follows the script is the script's."),
        (("train", "-n", "1", "--method", "rank_table", "train.py"), "did you mean 'rank-table'"),
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


def test_a_run_is_named_by_any_part_that_fits_one_only(bench: Bench) -> None:
    """An exact name outweighs a beginning, and a beginning any other part."""
    bench.write("train.py", TALK)
    for name in ("night-3f1", "3f1-day", "day-77"):
        bench.mslaunch("train", "-n", "1", "--run-id", name)
    for part, name in (("77", "day-77"), ("3f1", "3f1-day"), ("ght", "night-3f1"), ("latest", "day-77")):
        assert bench.mslaunch("status", part).stdout.startswith(f"{name}:"), part
    assert "fits 2 runs" in bench.mslaunch("status", "f1").stderr


def test_ps_says_what_it_does_not_show(bench: Bench) -> None:
    """Of 22 runs, 20; --all shows all of them, and says nothing."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "1", "--run-id", "r0")
    for number in range(1, 22):
        shutil.copytree(bench.runs / "r0", bench.runs / f"r{number}", symlinks=True)
    done = bench.mslaunch("ps")
    assert len(done.stdout.splitlines()) == 1 + 20
    assert done.stderr == "... 2 older runs; --all shows them\n"
    done = bench.mslaunch("ps", "--all")
    assert (len(done.stdout.splitlines()), done.stderr) == (1 + 22, "")


def test_ps_shows_local_time(bench: Bench) -> None:
    """Wherever a run was launched."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "1", "--run-id", "r", TZ="UTC")
    path = bench.latest / "run.json"
    path.write_text(json.dumps({**bench.record(), "started": "2026-01-02T03:04:05.000+00:00"}))
    assert " 01-02 08:34:05 " in bench.mslaunch("ps", TZ="Asia/Kolkata").stdout


def test_ps_all_finds_runs_of_other_folders(bench: Bench) -> None:
    """By their paths, which other verbs understand; neither folders that have gone nor a broken list are errors."""
    bench.write("train.py", TALK)
    bench.mslaunch("train", "-n", "1", "--run-id", "here")
    for name in ("gone", "there"):
        bench.mslaunch("train", "-n", "1", "--run-id", name, "--runs-dir", str(bench.folder.parent / name))
    shutil.rmtree(bench.folder.parent / "gone")
    assert "there" not in bench.mslaunch("ps").stdout
    listed = [line.split()[0] for line in bench.mslaunch("ps", "--all").stdout.splitlines()[1:]]
    assert listed == [str(bench.folder.parent / "there" / "there"), "here"]
    assert bench.mslaunch("status", listed[0]).stdout.startswith("there: succeeded")
    index = Path(bench.env["XDG_STATE_HOME"]) / "mslaunch" / "folders"
    index.write_bytes(b"\xff\0nonsense\n/\0\n\n" * 10)
    assert bench.mslaunch("ps", "--all").returncode == 0
    index.unlink()
    index.mkdir()
    assert bench.mslaunch("train", "-n", "1").returncode == 0


def test_the_list_of_folders_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that have gone are dropped when it has grown long."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number in range(3 * find.MOST):
        find.remember(tmp_path / f"gone{number}")
    find.remember(tmp_path)
    path = find.index_path()
    assert path is not None
    assert len(path.read_text().splitlines()) <= 2 * find.MOST
    assert find.remembered() == [tmp_path]


def test_stop_all_stops_every_run_of_the_folder_and_says_which(bench: Bench) -> None:
    """Those that go on; what has ended is not named."""
    bench.write("train.py", TALK)
    bench.write("wait.py", "import time\ntime.sleep(60)\n")
    bench.mslaunch("train", "-n", "1", "--run-id", "old")
    for name in ("one", "two"):
        bench.mslaunch("train", "-n", "1", "--detach", "--run-id", name, "wait.py")
    wait_for(lambda: len(bench.leftovers()) == 2, "the ranks")
    done = bench.mslaunch("stop", "--all")
    assert sorted(done.stdout.splitlines()) == ["one: stopped", "two: stopped"]
    assert bench.leftovers() == []
    assert bench.mslaunch("stop", "--all").stdout == "No run is going on here.\n"
    assert bench.mslaunch("stop", "--all", "one").returncode == 2


def go(bench: Bench, *ranks: int) -> None:
    for rank in ranks:
        wait_for((bench.latest / f"rank_{rank}" / "env.log").exists, f"rank {rank}")
        (bench.work(rank) / "go").touch()


def test_attach_shows_a_detached_run_to_its_end(bench: Bench) -> None:
    """Earlier lines, later ones, the end, and the run's exit code."""
    bench.write("train.py", UNTIL_GO + "raise SystemExit(7)\n")
    bench.mslaunch("train", "-n", "2", "--detach", "--run-id", "d1")
    wait_for(lambda: "first" in bench.log(0), "the first line")
    attached = bench.start("attach", "d")
    go(bench, 1, 0)
    output = attached.communicate(timeout=60)[0]
    assert attached.returncode == 7
    assert output.startswith("mslaunch: run d1: 2 ranks on CPU")
    assert "[rank 0] first\n" in output
    assert "exited with code 7" in output
    assert "run d1 failed after" in output
    assert "First to fail: rank" in output


def test_attach_shows_the_ranks_that_are_asked_for(bench: Bench) -> None:
    """Whatever the run itself shows."""
    bench.write("train.py", UNTIL_GO)
    bench.mslaunch("train", "-n", "2", "--detach", "--tail", "none")
    attached = bench.start("attach", "--tail", "1")
    go(bench, 0, 1)
    output = attached.communicate(timeout=60)[0]
    assert attached.returncode == 0
    assert "[rank 1] last\n" in output
    assert "[rank 0]" not in output
    assert bench.mslaunch("attach", "--tail", "2").returncode == 2


def test_leaving_an_attached_run_lets_it_go_on(bench: Bench) -> None:
    """Ctrl-C leaves, and says how to stop the run."""
    bench.write("train.py", UNTIL_GO)
    bench.mslaunch("train", "-n", "1", "--detach", "--run-id", "d1")
    attached = bench.start("attach")
    assert attached.stdout is not None
    assert attached.stdout.readline().startswith("mslaunch: run d1")
    attached.send_signal(signal.SIGINT)
    output = attached.communicate(timeout=60)[0]
    assert attached.returncode == 130
    assert "left d1, which goes on; `mslaunch stop d1` stops it" in output
    assert bench.record()["state"] == "running"
    bench.mslaunch("stop")


def test_attach_follows_a_run_through_a_restart(bench: Bench) -> None:
    """Notes and output of both attempts are shown."""
    bench.write("train.py", UNTIL_GO + "raise SystemExit(0 if os.environ['MSLAUNCH_ATTEMPT'] == '1' else 5)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  config_arg: null\n")
    bench.mslaunch("train", "-n", "1", "--detach", "-c", "cfg.yaml", "--max-restarts", "1")
    attached = bench.start("attach")
    assert attached.stdout is not None
    attached.stdout.readline()
    go(bench, 0)
    output = attached.communicate(timeout=60)[0]
    assert attached.returncode == 0, output
    assert "attempt 2 of 2 in 0 s" in output
    assert output.count("[rank 0] last") == 2
    assert "succeeded after" in output


def test_attach_to_a_run_that_has_ended_tells_how(bench: Bench) -> None:
    """With its last lines, its verdict and its exit code."""
    bench.write("train.py", "print('words')\nraise ValueError('x')\n")
    bench.mslaunch("train", "-n", "1")
    done = bench.mslaunch("attach")
    assert done.returncode == 1
    assert "ValueError: x" in done.stdout


def test_attach_does_not_take_ranks_that_were_stopped_for_failures(bench: Bench) -> None:
    """A time limit is the launcher's own decision; what it ends did not fail by itself."""
    bench.write("train.py", "import time\nprint('ready')\ntime.sleep(60)\n")
    bench.mslaunch("train", "-n", "2", "--detach", "--timeout", "4")
    done = bench.mslaunch("attach")
    assert done.returncode == 124, done.stdout
    assert "longer than 4 s (launch.timeout)" in done.stdout
    assert "was killed by" not in done.stdout


def test_attach_shows_a_run_of_another_program(bench: Bench) -> None:
    """One that was started with the Python API, whose launcher is a thread of that program."""
    bench.write("train.py", UNTIL_GO)
    bench.write("program.py", "import mslaunch\nmslaunch.Job('train.py', workers=1, run_id='api').run()\n")
    program = subprocess.Popen([sys.executable, "program.py"], cwd=bench.folder, env=bench.env)
    wait_for((bench.runs / "api" / "rank_0" / "env.log").exists, "the rank")
    attached = bench.start("attach", "api")
    assert attached.stdout is not None
    assert attached.stdout.readline().startswith("mslaunch: run api: 1 rank")
    go(bench, 0)
    output = attached.communicate(timeout=60)[0]
    assert program.wait(timeout=60) == 0
    assert attached.returncode == 0
    assert "[rank 0] last\n" in output


def test_two_launches_at_once_both_remember_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither loses the other's line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folders = [tmp_path / f"f{number}" for number in range(8)]
    code = "import pathlib, sys; from mslaunch.run.find import remember; remember(pathlib.Path(sys.argv[1]))"
    started = []
    for folder in folders:
        folder.mkdir()
        started.append(subprocess.Popen([sys.executable, "-c", code, str(folder)]))
    assert [process.wait(timeout=60) for process in started] == [0] * 8
    assert sorted(find.remembered()) == folders


def test_a_list_without_runs_has_no_table(bench: Bench) -> None:
    """The sentence says all; a header alone would read like a run without a name."""
    assert bench.mslaunch("ps").stdout == ""


def test_runs_go_on_in_a_copy_whose_link_became_a_folder(bench: Bench) -> None:
    """As `cp -rL` leaves it: the folder `latest` stays, and nothing is left beside it."""
    bench.write("train.py", "print('hello')\n")
    (bench.runs / "latest").mkdir(parents=True)
    done = bench.mslaunch("train", "-n", "1", "--run-id", "one")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in bench.runs.glob(".latest*")) == []
    assert bench.mslaunch("status").stdout.startswith("one")


def test_runs_are_not_added_to_a_repository(bench: Bench) -> None:
    """A folder of runs that was made here is ignored by git; one that was there is left as it is."""
    bench.write("train.py", "")
    subprocess.run(["git", "init", "-q"], cwd=bench.folder, check=True)
    (bench.folder / "mine").mkdir()
    for place in ("mslaunch-runs", "mine"):
        assert bench.mslaunch("train", "-n", "1", "--runs-dir", place).returncode == 0
    command = ["git", "status", "--short", "--untracked-files=normal"]
    shown = subprocess.run(command, cwd=bench.folder, check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["??", "mine/", "??", "train.py"]
