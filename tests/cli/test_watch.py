"""`mslaunch watch` in a real terminal: what it shows, what keys do, and how it leaves the terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest

from mslaunch.diagnose.verdict import Verdict
from tests.beds.terminal_bed import Tmux, settings_of, start_in_tmux, wait_for_the_end
from tests.beds.watch_bed import MadeRun, make_run
from tests.conftest import TIMEOUT, Bench, wait_for

WAITS = """\
import os, time
print(f"hello from rank {os.environ['RANK_ID']}", flush=True)
while not os.path.exists(os.environ["GO"]): time.sleep(0.02)
"""
AS_IT_WAS = ["0", "1", "1"]
"""No other screen, a cursor, lines that wrap."""


@contextmanager
def watching(bench: Bench, *args: str, columns: int = 100, lines: int = 30) -> Iterator[Tmux]:
    made = start_in_tmux(bench, *(args or ("watch",)), columns=columns, lines=lines)
    try:
        wait_for(lambda: made.ask("alternate_on") == ["1"], "the view", TIMEOUT)
        yield made
    finally:
        made.run("kill-server")


def sees(made: Tmux, *texts: str) -> None:
    """Wait until all texts are on the screen."""
    try:
        wait_for(lambda: (shown := "\n".join(made.screen())) and all(text in shown for text in texts), str(texts))
    except AssertionError as error:
        raise AssertionError(f"{error}; the screen is:\n" + "\n".join(made.screen())) from None


def processes(made: Tmux) -> list[psutil.Process]:
    """The command, and the process that draws for it: a copy of the command, unlike an agent."""
    (shell,) = made.ask("pane_pid")
    (command,) = psutil.Process(int(shell)).children()
    (view,) = [child for child in command.children() if child.cmdline() == command.cmdline()]
    return [command, view]


def leaves_as_it_was(made: Tmux) -> str:
    """Wait for the end; the terminal must be as one that nobody has used. Return what is on the screen."""
    shown = wait_for_the_end(made)
    is_as_it_was(made)
    return shown


def is_as_it_was(made: Tmux) -> None:
    """Compare the terminal with another one that tmux has just made, once it has made all of it."""
    assert made.ask("alternate_on", "cursor_flag", "wrap_flag") == AS_IT_WAS
    used = made.settings()
    made.run("new-session", "-d", "-s", "fresh", "sleep 600")
    fresh = made.run("display-message", "-p", "-t", "fresh", "#{pane_tty}").strip()
    wait_for(lambda: used == settings_of(fresh), f"{used} to be the settings of a fresh terminal")
    made.run("kill-session", "-t", "fresh")


@pytest.fixture
def eight(bench: Bench) -> MadeRun:
    made = make_run(bench.runs, 8)
    made.step(10)
    for rank in range(8):
        made.log(rank, f"first line of rank {rank}\n")
    return made


def test_a_run_is_shown_as_it_goes_on(bench: Bench, eight: MadeRun) -> None:
    """Steps, notes and lines of the log come to the screen; q leaves the run alone and the terminal as it was."""
    with watching(bench) as made:
        sees(made, "big: running", "8 ranks: 8 running", "epoch 1/2 step 10/500", "first line of rank 0")
        eight.step(20)
        eight.log(0, "second line\n")
        eight.event(ev="note", text="the disk is nearly full")
        sees(made, "step 20/500", "second line", "the disk is nearly full", "loss of rank 0: 0.4762")
        made.press("q")
        assert "ended with 0" in leaves_as_it_was(made)


def test_ranks_in_trouble_move_to_the_top(bench: Bench, eight: MadeRun) -> None:
    """A rank that is suspended, and its log."""
    with watching(bench) as made:
        sees(made, "8 running")
        eight.step(20, r5={"stopped": 1})
        sees(made, "1 suspended, 7 running", "log of rank 5", "first line of rank 5")
        assert next(line for line in made.screen() if "250 ms" in line).split()[:2] == ["5", "suspended"]


def test_keys_choose_what_is_shown(bench: Bench, eight: MadeRun) -> None:
    """A rank by its number or by arrows, its log on the whole screen, a filter, help."""
    for number in range(50):
        eight.log(6, f"line {number}\n")
    with watching(bench) as made:
        sees(made, "log of rank 0")
        made.press("6")
        sees(made, "log of rank 6", "line 49")
        made.press("l")
        wait_for(lambda: len([line for line in made.screen() if line.startswith("line ")]) > 20, "a long log")
        made.press("Home")
        sees(made, "first line of rank 6")
        made.press("Escape")
        sees(made, "8 running", "RANK")
        made.press("Down")
        sees(made, "log of rank 7")
        made.press("/", "2", "-", "3", "Enter")
        sees(made, "filter: 2-3", "log of rank 2")
        made.press("?")
        sees(made, "stop the job, after a question")


def test_a_window_of_another_size_is_filled(bench: Bench, eight: MadeRun) -> None:
    """Columns that had no room come, and go again."""
    del eight
    with watching(bench, columns=60) as made:
        sees(made, "STEP TIME")
        assert "MEMORY" not in "\n".join(made.screen())
        made.run("resize-window", "-t", "0", "-x", "150", "-y", "45")
        sees(made, "MEMORY", "2.5 GB")
        wait_for(lambda: len(made.run("capture-pane", "-p", "-t", "0").splitlines()) == 45, "45 lines")
        made.run("resize-window", "-t", "0", "-x", "40", "-y", "12")
        wait_for(lambda: "MEMORY" not in "\n".join(made.screen()), "a narrow table")
        sees(made, "STATE")


def test_a_run_that_fails_stays_on_the_screen(bench: Bench, eight: MadeRun) -> None:
    """With its verdict, until q is pressed."""
    with watching(bench) as made:
        sees(made, "8 running")
        eight.set_rank(3, ended=eight.record.started, exit_code=1)
        log = str(eight.folder.log(3))
        verdict = Verdict(rank=3, host="n0", exit_code=1, summary="ValueError: bad batch", log=log, victims=(0, 1))
        eight.end("failed", verdict=verdict)
        sees(made, "failed, exit code 1", "1 failed", "First to fail: rank 3", "ValueError: bad batch")
        made.press("v")
        sees(made, "victims: ranks 0-1")
        made.press("q")
        assert "ended with 0" in leaves_as_it_was(made)


def test_a_thousand_ranks_can_be_looked_through(bench: Bench) -> None:
    """The slow one of 1,024 is on top; any other is a number away."""
    run = make_run(bench.runs, 1024, 128)
    run.step(1)
    run.step(40, r777={"step_time": 3.0})
    run.log(1023, "I am the last\n")
    with watching(bench) as made:
        sees(made, "1024 ranks: 1 slow, 1023 running")
        wait_for(lambda: _first_words(made, "running", "slow")[1:4] == ["777", "0", "1"], "the slow one on top")
        made.press("1", "0", "2", "3")
        sees(made, "log of rank 1023", "I am the last", "of 1024")


def _first_words(made: Tmux, *texts: str) -> list[str]:
    """The beginnings of the lines that hold one of these texts."""
    return [line.split()[0] for line in made.screen() if any(text in line for text in texts)]


def kill_view(made: Tmux, number: int) -> None:
    processes(made)[1].send_signal(number)


def kill_command(made: Tmux, number: int) -> None:
    processes(made)[0].send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kill", [kill_command, kill_view])
def test_any_end_leaves_the_terminal_as_it_was(
    bench: Bench, eight: MadeRun, kill: Callable[[Tmux, int], None], number: signal.Signals
) -> None:
    """Whichever of the two processes is ended, and by which signal; none of them is left."""
    del eight
    with watching(bench) as made:
        sees(made, "8 running")
        started = processes(made)
        kill(made, number)
        wait_for(lambda: not any(process.is_running() for process in started), "both processes to end")
        is_as_it_was(made)
        if (kill, number) != (kill_command, signal.SIGKILL):  # then the shell may write while the view still shows
            assert f"ended with {128 + number}" in wait_for_the_end(made)


def test_ctrl_c_leaves_the_run(bench: Bench, eight: MadeRun) -> None:
    """As it leaves `attach`, with 130."""
    with watching(bench) as made:
        sees(made, "8 running")
        made.press("C-c")
        assert "ended with 130" in leaves_as_it_was(made)
    assert eight.record.state == "running"


def test_ctrl_z_gives_the_shell_its_screen(bench: Bench, eight: MadeRun) -> None:
    """`fg` brings the view back."""
    del eight
    made = start_in_tmux(replace(bench, program="bash"), "--norc", "-i", columns=100)
    try:
        made.press(f"{bench.program} watch", "Enter")
        sees(made, "8 running")
        made.press("C-z")
        sees(made, "Stopped")
        assert made.ask("alternate_on", "cursor_flag", "wrap_flag") == AS_IT_WAS
        made.press("fg", "Enter")
        wait_for(lambda: made.ask("alternate_on") == ["1"], "the view again")
        sees(made, "8 running")
        made.press("q")
        wait_for(lambda: made.ask("alternate_on") == ["0"], "the end of the view")
    finally:
        made.run("kill-server")


def test_without_a_terminal_it_says_so(bench: Bench, eight: MadeRun) -> None:
    """In one sentence that names what to use instead."""
    del eight
    done = bench.mslaunch("watch")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: watch needs a terminal, and standard input or output is none.")
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_that_can_do_nothing_is_told_by_its_name(bench: Bench, eight: MadeRun) -> None:
    """TERM is the reason, and what to do about it."""
    del eight
    made = start_in_tmux(replace(bench, program="env"), "TERM=dumb", bench.program, "watch", columns=200)
    try:
        shown = wait_for_the_end(made)
        assert "mslaunch: watch needs a terminal that can move its cursor; TERM=dumb says" in shown
        assert "ended with 2" in shown
    finally:
        made.run("kill-server")


def test_the_last_column_of_the_terminal_is_used(bench: Bench, eight: MadeRun) -> None:
    """Erasing the rest of a full line must not take its last character."""
    eight.log(0, "0123456789" * 20 + "\n")
    with watching(bench, columns=80) as made:
        sees(made, "012345678…")
        assert ("0123456789" * 8)[:79] + "…" in made.screen()


def test_a_folder_that_disappears_is_told(bench: Bench, eight: MadeRun) -> None:
    """What was known stays on the screen."""
    with watching(bench) as made:
        sees(made, "8 running")
        eight.folder.record.unlink()
        sees(made, "mslaunch-runs/big", "8 running")


def test_stacks_of_a_running_job_are_shown_and_it_is_stopped(bench: Bench) -> None:
    """A detached job: s shows where its ranks stand; x asks, and y stops it."""
    bench.write("train.py", WAITS)
    bench.env["GO"] = str(bench.folder / "go")
    assert bench.mslaunch("train", "-n", "2", "--detach").returncode == 0
    with watching(bench) as made:
        sees(made, "2 ranks: 2 running", "hello from rank 0")
        made.press("s")
        sees(made, "train.py")
        made.press("s", "x")
        sees(made, "Stop the job? y: yes")
        made.press("n")
        sees(made, "q quit")
        made.press("x", "y")
        sees(made, "stopped, exit code 143", "2 stopped")
    assert bench.record()["state"] == "stopped"


def test_a_rank_that_is_suspended_is_named(bench: Bench) -> None:
    """A real job: its steps are read from what it prints, and SIGSTOP shows at the right rank."""
    bench.write(
        "train.py",
        "import time\nfor n in range(1, 100000):\n"
        "    time.sleep(0.1)\n    print(f'step {n}: loss={1 / n}', flush=True)\n",
    )
    assert bench.mslaunch("train", "-n", "3", "--detach").returncode == 0
    with watching(bench) as made:
        sees(made, "3 ranks: 3 running", "loss of rank 0", "steps/s")
        pid = next(row["pid"] for row in bench.record()["ranks"] if row["rank"] == 1)
        os.kill(pid, signal.SIGSTOP)
        sees(made, "1 suspended", "log of rank 1", "rank 1 on")
        os.kill(pid, signal.SIGCONT)
        sees(made, "3 ranks: 3 running")
    bench.mslaunch("stop")
