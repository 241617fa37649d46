"""When lines came: noted by the agent, and used by `mslaunch logs`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE

import pytest

from mslaunch.agent.rank_logs import MANY_PAIRS, LogTimes
from mslaunch.cli.parsing.common import parse_since
from mslaunch.errors import RequestError
from mslaunch.run.logs import BLOCK, LogLines, Selection, TimedLog, merge_logs
from tests.beds.watch_bed import make_run
from tests.conftest import Bench, wait_for

# Each rank waits for the other one's line, so that the order is known.
IN_TURNS = """\
import os, time
rank = int(os.environ['RANK_ID'])
for n in range(3):
    mine, other = f'{os.environ["BOARD"]}/{rank}-{n}', f'{os.environ["BOARD"]}/{1 - rank}-{n if rank else n - 1}'
    while n - 1 + rank >= 0 and not os.path.exists(other): time.sleep(0.01)
    print(f'turn {n} of {rank}', flush=True)
    time.sleep(0.5)
    open(mine, 'w').close()
"""


def log_with(folder: Path, rank: int, lines: list[tuple[float, str]]) -> TimedLog:
    """A log whose lines came at these times."""
    log, times = folder / f"log{rank}.txt", folder / f"log{rank}.times"
    offset = 0
    with log.open("w") as text, times.open("w") as index:
        for time, line in lines:
            offset += text.write(f"{line}\n")
            index.write(f"{time:.3f} {offset}\n")
    return TimedLog(rank, log, times)


def texts(lines: Iterable[LogLines]) -> list[str]:
    return [text for some in lines for text in some.texts]


def test_lines_of_ranks_are_merged_by_the_time_they_came(bench: Bench) -> None:
    """Also of a rank that is not shown while it runs."""
    bench.write("train.py", IN_TURNS)
    board = bench.folder / "board"
    board.mkdir()
    assert bench.mslaunch("train", "-n", "2", "--tail", "0", BOARD=str(board)).returncode == 0
    shown = bench.mslaunch("logs").stdout.splitlines()
    assert shown == [f"[rank {rank}] turn {n} of {rank}" for n in range(3) for rank in range(2)]


def test_a_line_is_shown_with_its_time(bench: Bench) -> None:
    """The time that the file was written to."""
    bench.write("train.py", "print('hello')\n")
    bench.mslaunch("train", "-n", "1")
    [line] = bench.mslaunch("logs", "-t").stdout.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} hello", line)


def test_without_times_logs_come_one_after_the_other(bench: Bench) -> None:
    """As those of runs from before there were times; a dash stands for a time that nobody knows."""
    bench.write("train.py", "import os\nprint('one\\ntwo', os.environ['RANK_ID'])\n")
    bench.mslaunch("train", "-n", "2")
    for path in bench.latest.glob("rank_*/log.times"):
        path.unlink()
    shown = bench.mslaunch("logs", "-t").stdout.splitlines()
    assert [line.split(" ", 1)[0] for line in shown] == ["-"] * 4
    expected = ["[rank 0] one", "[rank 0] two 0", "[rank 1] one", "[rank 1] two 1"]
    assert [line.strip("- ") for line in shown] == expected


@pytest.mark.parametrize("offset", [0, 1, 20_000])
def test_only_lines_since_a_time_are_read(tmp_path: Path, offset: int) -> None:
    """Wherever in the file they begin, blocks apart from its start too."""
    log = log_with(tmp_path, 0, [(100.0 + n, f"line {n}") for n in range(offset + 3)])
    wanted = Selection(since=100.0 + offset + 1)
    assert texts(log.lines(wanted)) == [f"line {offset + 1}", f"line {offset + 2}"]
    assert [line.time for line in log.lines(wanted)] == [100.0 + offset + 1, 100.0 + offset + 2]


@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("count", [0, 1, 3, 5000, 10**6])
def test_the_last_lines_are_found_from_the_end(tmp_path: Path, count: int, ending: str) -> None:
    """With and without a newline at the very end; more than there are is all."""
    lines = [f"line {n}" for n in range(20_000)]
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + ending)
    assert texts(TimedLog(0, path, None).lines(Selection(last=count))) == (lines[-count:] if count else [])


def test_matching_lines_are_counted_from_the_end(tmp_path: Path) -> None:
    """`-n 2 --grep x` are the last two that match."""
    log = log_with(tmp_path, 0, [(1.0 + n, f"{'x' if n % 10 == 0 else 'y'} {n}") for n in range(100)])
    assert texts(log.lines(Selection(matches=lambda line: "x" in line, last=2))) == ["x 80", "x 90"]


def test_lines_of_every_healthy_run_are_hidden_and_that_is_said(bench: Bench) -> None:
    """As on the screen of `train`; all of them can be had, and a search leaves none out."""
    noise = (
        "[WARNING] DISTRIBUTED(1,7f,python) [cluster_context.cc:319] BuildCluster] Cluster is successfully initialized."
    )
    bench.write("train.py", f"for n in range(3):\n    print(n)\n    print({noise!r})\n")
    assert bench.mslaunch("train", "-n", "1", "train.py").returncode == 0
    shown = bench.mslaunch("logs")
    assert (shown.stdout, "are hidden; --all shows them" in shown.stderr) == ("0\n1\n2\n", True)
    assert bench.mslaunch("logs", "-n", "2").stdout == "1\n2\n"
    whole = bench.mslaunch("logs", "--all")
    assert (whole.stdout.count(noise), whole.stderr) == (3, "")
    assert bench.mslaunch("logs", "--grep", "initialized").stdout.count(noise) == 3


def test_logs_are_merged_lazily_and_in_order(tmp_path: Path) -> None:
    """Times that step back, as a clock may, do not lead to disorder within a rank."""
    logs = [
        log_with(tmp_path, 0, [(1.0, "a"), (5.0, "b"), (4.0, "c"), (9.0, "d")]),
        log_with(tmp_path, 1, [(2.0, "A"), (6.0, "B"), (10.0, "C")]),
    ]
    assert "".join(texts(merge_logs(logs, Selection()))) == "aAbcBdC"


@pytest.mark.parametrize("times", [b"", b"garbage\n", b"1.0 5\nnan x\n", b"\0" * 100_000, b"9" * 100_000])
def test_times_that_are_none_do_no_harm(tmp_path: Path, times: bytes) -> None:
    """A file that somebody has changed: all lines are there, some without a time of their own."""
    path, index = tmp_path / "log.txt", tmp_path / "log.times"
    path.write_text("one\ntwo\n")
    index.write_bytes(times)
    assert texts(merge_logs([TimedLog(0, path, index)], Selection())) == ["one", "two"]


def test_a_line_longer_than_any_block_comes_in_bounded_pieces(tmp_path: Path) -> None:
    """And nothing of it is lost."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * (100 * BLOCK) + b"\nend\n")
    log = TimedLog(0, path, None)
    *pieces, last = texts(log.lines(Selection()))
    assert (sum(map(len, pieces)), last) == (100 * BLOCK, "end")
    assert log.offset == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 970.0), ("10m", 400.0), ("1970-01-01T00:05:00+00:00", 300.0), ("1970-01-01 00:05:00+00:00", 300.0)],
)
def test_since_is_a_span_or_a_time(text: str, seconds: float) -> None:
    """A span counts from now."""
    assert parse_since(text, 1000.0) == seconds


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "-5m", "99999-01-01"])
def test_since_that_is_neither_is_refused(text: str) -> None:
    """The message says what to write."""
    with pytest.raises(RequestError, match="write 10min, 2h, 1d, or a time such as"):
        parse_since(text, 1000.0)


def test_earlier_attempts_have_their_logs_and_are_listed(bench: Bench) -> None:
    """--attempt names one; status tells how each ended, and ps how many there were."""
    bench.write(
        "train.py", "import os\nn = int(os.environ['MSLAUNCH_ATTEMPT'])\nprint('try', n)\nraise SystemExit(2 - n)\n"
    )
    args = ("train", "-n", "1", "--max-restarts", "2", "--set", "launch.backoff=0")
    assert bench.mslaunch(*args).returncode == 0
    for attempt in range(3):
        shown = bench.mslaunch("logs", "--attempt", str(attempt + 1), "-t").stdout
        assert re.fullmatch(rf"\d\S+ \S+ try {attempt}\n", shown)
    refused = bench.mslaunch("logs", "--attempt", "4")
    assert refused.returncode == 2
    assert "has no attempt 4; the first is 1, the last 3." in refused.stderr
    status = bench.mslaunch("status").stdout
    when = r"\d\d-\d\d \S+"
    assert re.search(rf"\n1 +{when} +2 +rank \d: exited with code 2\n2 .* 1 .*\n3 +{when} +0 +succeeded\n", status)
    assert re.search(r"ATTEMPTS.*\n.* succeeded +0 +3 ", bench.mslaunch("ps").stdout)


def test_a_log_that_grows_for_hours_has_fewer_pairs(tmp_path: Path) -> None:
    """From then on one a second, and one for its end."""
    log = tmp_path / "log.txt"
    log.write_text("x")
    times = LogTimes()
    times.begin([str(log)])
    times.look_at_all(0.0)
    [one] = times._logs.values()
    one.pairs = MANY_PAIRS
    for step in range(5):
        with log.open("a") as file:
            file.write("x")
        os.utime(log, (one.time + 0.1, one.time + 0.1))
        times.look(0.2 * (step + 1))
    times.finish(str(log))
    assert len((tmp_path / "log.times").read_text().splitlines()) == 2


def test_following_goes_on_where_the_merged_lines_end(bench: Bench) -> None:
    """Every line once, in order; a line that is half written when following begins, whole."""
    bench.write(
        "train.py",
        "import os, time\nprint('one\\nhal', end='', flush=True)\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.02)\nprint('f\\nthree')\n",
    )
    go = bench.folder / "go"
    bench.env["GO"] = str(go)
    bench.start("train", "-n", "1")
    wait_for(lambda: (bench.runs / "latest").exists() and bench.log(0) == "one\nhal", "the rank's first lines")
    follower = bench.start("logs", "-f", "-t")
    assert follower.stdout
    first = follower.stdout.readline()
    go.touch()
    assert [line.split()[-1] for line in (first, *follower.stdout)] == ["one", "half", "three"]


def logs_within(bench: Bench, limit: str) -> subprocess.Popen[str]:
    command = f"{limit}; exec {shlex.join([bench.program, 'logs', '-f'])}"
    return subprocess.Popen(
        ["bash", "-c", command], cwd=bench.folder, env=bench.env, stdout=PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_more_logs_are_followed_than_a_shell_lets_open(bench: Bench) -> None:
    """Up to what the system allows; beyond that, ranks are not left out in silence."""
    made = make_run(bench.runs, 30)
    for rank in range(30):
        made.log(rank, f"first of {rank}\n")
    with logs_within(bench, "ulimit -Sn 40") as follower:
        assert follower.stdout
        first = [follower.stdout.readline() for _ in range(30)]
        for rank in range(30):
            made.log(rank, f"second of {rank}\n")
        made.end("succeeded")
        rest = follower.stdout.read().splitlines()
    assert all("first of" in line for line in first)
    assert sorted(rest) == sorted(f"[rank {rank}] second of {rank}" for rank in range(30))
    with logs_within(bench, "ulimit -n 80") as follower:
        assert follower.stdout
        assert "30 logs cannot be followed at once" in follower.stdout.read()
    assert follower.returncode == 2
