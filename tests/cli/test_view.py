"""`mslaunch train --view`: the job is the launcher's as ever; the view only shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.beds.terminal_bed import run_in_terminal, start_in_tmux, wait_for_the_end
from tests.cli.test_watch import AS_IT_WAS, WAITS, is_as_it_was, leaves_as_it_was, processes, sees, watching
from tests.conftest import Bench, wait_for

VIEW = ("train", "-n", "2", "--view", "train.py")


@pytest.fixture
def waiting(bench: Bench) -> Iterator[Path]:
    """A job that goes on until the file is there."""
    bench.write("train.py", WAITS)
    go = bench.folder / "go"
    bench.env["GO"] = str(go)
    yield go
    go.touch()


def test_the_end_of_a_job_ends_its_view(bench: Bench, waiting: Path) -> None:
    """What is left on the screen is how it ended; the exit code is the job's."""
    with watching(bench, *VIEW) as made:
        sees(made, "2 ranks: 2 running", "hello from rank 0")
        waiting.touch()
        shown = leaves_as_it_was(made)
    assert "succeeded after" in shown
    assert "ended with 0" in shown
    assert "hello" not in shown


def test_a_failure_is_explained_after_the_view(bench: Bench, waiting: Path) -> None:
    """With the verdict and the code of the rank that failed."""
    bench.write("train.py", WAITS + "raise SystemExit(7 if os.environ['RANK_ID'] == '1' else 0)\n")
    with watching(bench, *VIEW) as made:
        sees(made, "2 running")
        waiting.touch()
        shown = leaves_as_it_was(made)
    assert "First to fail: rank 1" in shown
    assert "ended with 7" in shown


def test_ctrl_c_stops_the_job_as_usual(bench: Bench, waiting: Path) -> None:
    """The view stays until nothing of the job is left; Ctrl-C again ends ranks that do not want to."""
    del waiting
    bench.write("train.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    bench.write("cfg.yaml", "launch: {script: train.py, workers: 2, grace: 600}\n")
    with watching(bench, "train", "--config", "cfg.yaml", "--view") as made:
        sees(made, "2 running", "hello from rank 0")
        made.press("C-c")
        sees(made, ": stopping |", "2 running")
        made.press("C-c")
        shown = leaves_as_it_was(made)
    assert "stopped after" in shown
    assert "ended with 130" in shown


def test_quitting_offers_plain_lines(bench: Bench, waiting: Path) -> None:
    """The job goes on below the view that was closed, and is followed to its end."""
    with watching(bench, *VIEW) as made:
        sees(made, "2 running")
        made.press("q")
        sees(made, "s: stop it, f: follow it in plain lines")
        made.press("f")
        sees(made, "mslaunch: the view is closed; the job goes on", "2/2 ranks up")
        waiting.touch()
        shown = leaves_as_it_was(made)
    assert "succeeded after" in shown
    assert "ended with 0" in shown


def test_quitting_offers_to_stop_the_job(bench: Bench, waiting: Path) -> None:
    """As `mslaunch stop` does."""
    del waiting
    with watching(bench, *VIEW) as made:
        sees(made, "2 running")
        made.press("q", "s")
        shown = leaves_as_it_was(made)
    assert "stopped after" in shown
    assert "ended with 143" in shown


def test_a_view_that_is_killed_does_not_end_the_job(bench: Bench, waiting: Path) -> None:
    """The terminal is given back, and plain lines follow."""
    with watching(bench, *VIEW) as made:
        sees(made, "2 running")
        processes(made)[1].kill()
        sees(made, "mslaunch: the view was killed; the job goes on", "2/2 ranks up")
        waiting.touch()
        assert "ended with 0" in leaves_as_it_was(made)


def test_a_launcher_that_is_killed_takes_its_view_along(bench: Bench, waiting: Path) -> None:
    """The terminal is as it was, and the agent ends the ranks."""
    del waiting
    with watching(bench, *VIEW) as made:
        sees(made, "2 running")
        processes(made)[0].kill()
        wait_for(lambda: made.ask("alternate_on") == ["0"], "the end of the view")
        is_as_it_was(made)
        wait_for(lambda: not bench.leftovers(), "the ranks to end")


def test_ctrl_z_suspends_the_job_and_gives_the_shell_its_screen(bench: Bench, waiting: Path) -> None:
    """`fg` brings both back."""
    made = start_in_tmux(replace(bench, program="bash"), "--norc", "-i", columns=100)
    try:
        made.press(f"{bench.program} {' '.join(VIEW)}", "Enter")
        sees(made, "2 running")
        made.press("C-z")
        sees(made, "Stopped")
        assert made.ask("alternate_on", "cursor_flag", "wrap_flag") == AS_IT_WAS
        made.press("fg", "Enter")
        sees(made, "2 ranks: 2 running")
        waiting.touch()
        sees(made, "succeeded after")
    finally:
        made.run("kill-server")


def test_ranks_do_not_read_the_keys_of_the_view(bench: Bench, waiting: Path) -> None:
    """A single rank would otherwise read what is typed."""
    bench.write("train.py", "import sys\nprint('read', repr(sys.stdin.read()), flush=True)\n" + WAITS)
    with watching(bench, "train", "-n", "1", "--view", "train.py") as made:
        sees(made, "read ''")
        waiting.touch()
        assert "ended with 0" in wait_for_the_end(made)


def test_without_a_terminal_there_is_no_view(bench: Bench, waiting: Path) -> None:
    """Nothing is started."""
    del waiting
    done = bench.mslaunch(*VIEW)
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: --view needs a terminal")
    assert not bench.runs.exists()


@pytest.mark.parametrize("option", ["--detach", "--json"])
def test_options_that_contradict_a_view_are_refused(bench: Bench, waiting: Path, option: str) -> None:
    """In one sentence."""
    del waiting
    done = bench.mslaunch("train", "-n", "2", "--view", option, "train.py")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"--view and {option} do not go together" in done.stderr


def test_a_job_that_cannot_start_is_told_without_a_view(bench: Bench) -> None:
    """The terminal is never taken."""
    shown = run_in_terminal(bench, "train", "-n", "2", "--view", "missing.py")
    assert "missing.py" in shown
    assert "\x1b[?1049h" not in shown


def test_a_job_on_other_hosts_is_viewed(far: Bench) -> None:
    """Over SSH, with the hosts of the ranks."""
    far.write("train.py", WAITS)
    go = far.folder / "go"
    with watching(far, "train", "--hosts", "n1:1,n2:1", "--env", f"GO={go}", "--view", "train.py") as made:
        sees(made, "2 ranks: 2 running", "HOST", "n2 ")
        go.touch()
        assert "ended with 0" in leaves_as_it_was(made)


def test_a_job_in_a_queue_is_viewed(site: Bench) -> None:
    """From submission to its end; then the verdict stands on the screen that was there before."""
    site.write("train.py", WAITS + "raise SystemExit(7)\n")
    go = site.folder / "go"
    command = ("train", "--transport", "slurm", "-N", "1", "-n", "1", "--env", f"GO={go}", "--view", "train.py")
    with watching(site, *command) as made:
        sees(made, "1 rank: 1 running", "hello from rank 0")
        go.touch()
        shown = leaves_as_it_was(made)
    assert "First to fail: rank 0" in shown
    assert "ended with 7" in shown


def test_ctrl_c_cancels_a_job_in_a_queue(site: Bench) -> None:
    """As without the view."""
    site.write("train.py", WAITS)
    command = ("train", "--transport", "slurm", "-N", "1", "-n", "1", "--env", "GO=never", "--view", "train.py")
    with watching(site, *command) as made:
        sees(made, "hello from rank 0")
        made.press("C-c")
        assert "ended with 130" in leaves_as_it_was(made)
    assert site.record()["state"] == "stopped"
