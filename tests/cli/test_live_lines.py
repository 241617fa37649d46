"""Progress bars of ranks: live in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.cli.console.console import LiveLines
from mslaunch.shared.follow import ShownFollower
from mslaunch.text import display_width, fit, plain_output
from tests.beds.terminal_bed import start_in_tmux, wait_for_the_end
from tests.conftest import Bench, wait_for

BAR = """\
import os, sys, time
print('begin', flush=True)
for n in range(101):
    sys.stderr.write(f'\\r\\x1b[32m{n:3}% of rank {os.environ["RANK_ID"]} |中中中|\\x1b[0m\\x1b[K')
    sys.stderr.flush()
    while n == 50 and not os.path.exists(os.environ['GO']): time.sleep(0.02)
    if n == 50: print('\\rin between', flush=True)
sys.stderr.write('\\n')
print('end')
"""


def test_lines_are_drawn_in_place_of_those_before() -> None:
    """The cursor goes up to the first of them; what stood there is erased."""
    live = LiveLines()
    assert live.draw(["one", "two"], 80) == "\rone\x1b[K\ntwo\x1b[J"
    assert live.draw(["one", "two"], 80) == ""
    assert live.draw(["three"], 80) == "\r\x1b[1Athree\x1b[J"
    assert live.erase(80) == "\r\x1b[J"
    assert live.erase(80) == ""


def test_a_window_that_was_made_narrower_is_taken_into_account() -> None:
    """Lines that the terminal has wrapped take more rows."""
    live = LiveLines()
    live.draw(["x" * 30, "y" * 10], 80)
    assert live.erase(20) == "\r\x1b[2A\x1b[J"


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 4, "abcd"),
        ("中文字", 5, "中文"),
        ("\x1b[31mabcdef\x1b[0m", 4, "\x1b[31mabcd\x1b[0m"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("a\tb", 8, "a       "),
        ("abc", 0, ""),
    ],
)
def test_a_live_line_never_wraps(text: str, columns: int, shown: str) -> None:
    """Wide characters take two columns, colours and combining characters none."""
    assert fit(text, columns) == shown
    assert display_width(shown) <= columns


@pytest.mark.parametrize("sequence", ["\x1b[K", "\x1b[2K", "\x1b[A", "\x1b[?25l"])
def test_what_progress_bars_send_besides_is_left_out(sequence: str) -> None:
    """Erasing the line, going up a line, hiding the cursor."""
    assert plain_output(f"{sequence}50%{sequence}") == "50%"


def test_a_line_is_cut_after_what_was_written_over() -> None:
    """The last state of a long progress bar is shown, not its beginning."""
    assert plain_output("\r".join(f"{n}%" for n in range(5000)), 10) == "4999%"


def test_a_progress_bar_is_known_before_its_line_ends(tmp_path: Path) -> None:
    """A line that was written over is one; a line that is merely half written, or ends like DOS lines, is none."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"half")
    follower = ShownFollower(str(path))
    states = []
    for data in (b" a line\r", b"\n\r 1%", b"\r 2%", b"\r 3%\nnext"):
        with path.open("ab") as file:
            file.write(data)
        states.append((follower.read(), follower.bar()))
    follower.close()
    assert states == [([], ""), (["half a line"], " 1%"), ([], " 2%"), ([" 3%"], "")]


def test_a_progress_bar_without_end_stays_bounded(tmp_path: Path) -> None:
    """Hours of it are one line, of which the last state is kept."""
    path = tmp_path / "log.txt"
    follower = ShownFollower(str(path))
    for number in range(50):
        with path.open("ab") as file:
            file.write(b"".join(b"\r%d of 5000" % (number * 100 + step) for step in range(100)))
        assert follower.read(limit=2000) == []
    assert follower.bar() == "4999 of 5000"
    assert follower.rest() == ["4999 of 5000"]
    follower.close()


@pytest.mark.parametrize(("ranks", "columns"), [(1, 100), (4, 34)])
def test_bars_and_the_status_are_live_below_the_log(bench: Bench, ranks: int, columns: int) -> None:
    """One line a rank, in order, whole in a narrow terminal too; afterwards each bar has left its last state."""
    bench.write("train.py", BAR)
    go = bench.folder / "go"
    bench.env["GO"] = str(go)
    made = start_in_tmux(bench, "train", "-n", str(ranks), "--stdin", "none", "--tail", "all", columns=columns)
    try:
        bars = [f"[rank {rank}]  50% of rank {rank} |中中中|"[: columns - 4] for rank in range(ranks)]
        wait_for(lambda: made.screen()[-ranks - 1 : -1] == bars, "the bars above the status line")
        assert made.screen()[-1].startswith(f"{ranks}/{ranks} ranks up")
        go.touch()
        shown = wait_for_the_end(made)
    finally:
        made.run("kill-server")
    for rank in range(ranks):
        assert f"[rank {rank}] in between" in shown
        assert shown.count(f"% of rank {rank}") == 1
        assert f"[rank {rank}] 100% of rank {rank} |中中中|" in shown
    assert "ranks up" not in shown


def test_without_a_terminal_a_long_bar_is_a_line_now_and_then(bench: Bench) -> None:
    """The job is seen to go on; a bar that moves a hundred times does not make a hundred lines."""
    bench.write(
        "train.py",
        "import os, sys, time\nn = 0\nwhile not os.path.exists(os.environ['GO']):\n    n += 1\n"
        "    sys.stderr.write(f'\\rstep {n}'); sys.stderr.flush(); time.sleep(0.02)\nprint('\\nend')\n",
    )
    bench.env["GO"] = str(bench.folder / "go")
    process = bench.start("train", "-n", "1")
    assert process.stdout
    first = next(line for line in process.stdout if "step" in line)
    (bench.folder / "go").touch()
    rest = process.stdout.read()
    assert first.startswith("[rank 0] step ")
    assert rest.count("step") < 10
    assert "[rank 0] end\n" in rest


def test_without_a_terminal_a_bar_is_its_last_state(bench: Bench) -> None:
    """A quick one is one line; its colour ends with it."""
    bench.write("train.py", BAR)
    bench.env["GO"] = str(bench.folder)
    shown = bench.mslaunch("train", "-n", "1").stdout
    assert shown.count("% of rank") == 1
    assert "[rank 0] \x1b[32m100% of rank 0 |中中中|\x1b[0m\x1b[0m\n[rank 0] end\n" in shown
