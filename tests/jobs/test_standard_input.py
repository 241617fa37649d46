"""Standard input of one rank: prompts, debuggers, pipes, and a terminal that is left as it was found."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, Bench, wait_for

ASK = "name = input('name? ')\nprint('hello', name)\n"


class Typist:
    """A command in a terminal of its own, what it shows, and keys for it."""

    def __init__(self, bench: Bench, *args: str) -> None:
        self.screen = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(bench.folder)
            os.execvpe(args[0], args, {**bench.env, "TERM": "xterm"})
        self.modes = termios.tcgetattr(self.terminal)

    def sees(self, text: str, seconds: float = 60.0) -> None:
        """Wait until something has been shown since the last look."""
        end = time.monotonic() + seconds
        while text.encode() not in self.screen:
            assert time.monotonic() < end, self.screen.decode(errors="replace")
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.terminal, 4096)
                except OSError:
                    break
        assert text.encode() in self.screen, self.screen.decode(errors="replace")
        self.screen = self.screen.partition(text.encode())[2]

    def types(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def code(self) -> int:
        """Wait for the end of the command; what it still shows is read."""
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    os.read(self.terminal, 4096)
                except OSError:
                    time.sleep(0.05)


@pytest.fixture
def terminal(bench: Bench) -> Iterator[Callable[..., Typist]]:
    """Commands in terminals; none outlives its test."""
    made: list[Typist] = []

    def start(*args: str) -> Typist:
        made.append(Typist(bench, *(args if args[0] == "bash" else (MSLAUNCH, *args))))
        return made[-1]

    yield start
    for one in made:
        os.close(one.terminal)
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def piped(bench: Bench, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MSLAUNCH, "train", *args],
        cwd=bench.folder,
        env=bench.env,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_prompt_is_shown_and_answered(bench: Bench, terminal: Callable[..., Typist]) -> None:
    """input() works, its prompt has no newline, and log.txt has everything."""
    bench.write("train.py", ASK)
    typist = terminal("train", "-n", "1")
    typist.sees("\nname? ")
    typist.types("ann\n")
    typist.sees("hello ann\r\n")
    assert typist.code() == 0
    assert bench.log(0) == "name? hello ann\n"


def test_a_debugger_works(bench: Bench, terminal: Callable[..., Typist]) -> None:
    """breakpoint() stops the script and takes commands."""
    bench.write("train.py", "x = 41\nbreakpoint()\nx += 1\nprint('x is', x)\n")
    typist = terminal("train", "-n", "1")
    typist.sees("(Pdb) ")
    typist.types("p x\n")
    typist.sees("41\r\n")
    typist.sees("(Pdb) ")
    typist.types("c\n")
    typist.sees("x is 42")
    assert typist.code() == 0


def test_ctrl_d_ends_the_input_and_ctrl_c_the_job(bench: Bench, terminal: Callable[..., Typist]) -> None:
    """As with plain Python, and as with every other job."""
    bench.write("train.py", "import sys\nprint('read', sys.stdin.read())\ninput('again? ')\n")
    typist = terminal("train", "-n", "1")
    wait_for(lambda: bench.runs.exists() and (bench.latest / "rank_0" / "env.log").exists(), "the rank")
    typist.types("text\n\x04")
    typist.sees("read text\r\n")
    typist.sees("again? ")
    typist.types("\x03")
    assert typist.code() == 130
    assert bench.record()["state"] == "stopped"


def test_ctrl_z_stops_the_rank_until_the_command_is_continued(bench: Bench, terminal: Callable[..., Typist]) -> None:
    """The shell has the terminal meanwhile, and the rank must not read what is typed there."""
    bench.write("train.py", ASK)
    typist = terminal("train", "-n", "1")
    typist.sees("name? ")
    rank = wait_for(lambda: bench.record()["ranks"][0]["pid"], "the record to have the rank's pid")

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    typist.types("\x1a")
    wait_for(lambda: state(typist.pid) == "T" and state(rank) == "T", "launcher and rank to be stopped")
    os.kill(typist.pid, signal.SIGCONT)
    wait_for(lambda: state(rank) != "T", "the rank to go on")
    typist.types("ann\n")
    typist.sees("hello ann")
    assert typist.code() == 0


@pytest.mark.parametrize("how", ["\x03", "kill"])
def test_the_terminal_is_left_as_it_was(bench: Bench, terminal: Callable[..., Typist], how: str) -> None:
    """A rank that asks for a password has switched the echo off, and cannot switch it on when it is ended."""
    bench.write("train.py", "import getpass\ngetpass.getpass('password? ')\n")
    typist = terminal("train", "-n", "1")
    typist.sees("password? ")
    assert not termios.tcgetattr(typist.terminal)[3] & termios.ECHO
    if how == "kill":
        os.kill(typist.pid, signal.SIGKILL)
    else:
        typist.types(how)
    wait_for(lambda: termios.tcgetattr(typist.terminal)[3] & termios.ECHO, "the echo")
    typist.code()
    wait_for(lambda: not bench.leftovers(), "the ranks to be gone")


def test_a_command_in_the_background_reads_nothing(bench: Bench, terminal: Callable[..., Typist]) -> None:
    """The terminal is the shell's then, and what is typed is for the shell."""
    bench.write("train.py", "import sys\nprint('read', repr(sys.stdin.read()))\n")
    typist = terminal("bash", "-c", f"set -m; {MSLAUNCH} train -n 1 & wait $!")
    typist.sees("read ''")
    assert typist.code() == 0


def test_a_pipe_is_read(bench: Bench) -> None:
    """`echo yes | mslaunch train -n 1 x.py`; the output has its prefix, since nobody types."""
    bench.write("train.py", ASK)
    done = piped(bench, "yes\n", "-n", "1")
    assert "[rank 0] name? hello yes\n" in done.stdout


def test_one_rank_of_several_reads_if_it_is_named(bench: Bench) -> None:
    """The others read nothing, and neither does anybody who was not named."""
    bench.write("train.py", "import os, sys\nprint(os.environ['RANK_ID'], repr(sys.stdin.read()))\n")
    assert piped(bench, "text", "-n", "2", "--stdin", "1").returncode == 0
    assert (bench.log(0), bench.log(1)) == ("0 ''\n", "1 'text'\n")
    assert piped(bench, "text", "-n", "2").returncode == 0
    assert (bench.log(0), bench.log(1)) == ("0 ''\n", "1 ''\n")
    assert piped(bench, "text", "-n", "1", "--stdin", "none").returncode == 0
    assert bench.log(0) == "0 ''\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-n", "2", "--stdin", "2"), "--stdin: rank 2 does not exist; the last one is 1."),
        (("-n", "1", "--stdin", "0", "--method", "rank-table"), "--stdin: only a rank on this machine"),
        (("-n", "1", "--stdin", "0", "--detach"), "--stdin: only a rank on this machine"),
        (("-n", "1", "--stdin", "x"), "--stdin: "),
    ],
)
def test_what_cannot_read_is_refused(bench: Bench, args: tuple[str, ...], words: str) -> None:
    """In one sentence, before anything starts."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", *args)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not bench.runs.exists()


@pytest.mark.parametrize("call", ["breakpoint()", "input()"])
def test_a_rank_that_reads_without_an_input_is_answered_with_the_option(bench: Bench, call: str) -> None:
    """Of several ranks none reads the terminal or the pipe by default."""
    bench.write("train.py", f"{call}\nprint('after')\n")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 1
    assert "--stdin 0" in done.stdout


@pytest.mark.parametrize("words", [("python", "-"), ("python",), ("--stdin", "0", "python", "-")])
def test_a_script_from_standard_input_is_refused_for_several_ranks(bench: Bench, words: tuple[str, ...]) -> None:
    """It would run on one rank at most, and the others would succeed without having done anything."""
    done = bench.mslaunch("train", "-n", "2", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "reads its script from standard input" in done.stderr
