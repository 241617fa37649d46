"""mslaunch.runtime.report: values that scripts tell, from real processes to a real agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent.rank_messages import RankMessages
from mslaunch.runtime import metrics, report
from tests.agent.test_log_metrics import order
from tests.beds.driven_agent import driven_agent
from tests.conftest import ROOT

SCRIPT = "import sys; sys.path.insert(0, {root!r})\nfrom mslaunch.runtime import report\n"


def told_by(tmp_path: Path, text: str, **changes: Any) -> list[dict[str, Any]]:
    """Run a script as a rank of a real agent; return the values that come before its end."""
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(ROOT)) + text)
    with driven_agent(tmp_path) as agent:
        agent.run(f"RANK_ID=0 {sys.executable} script.py", metrics=order(**changes))
        events = agent.until("exited")
    assert events[-1]["code"] == 0, (tmp_path / "rank_0" / "log.txt").read_text()
    rows = [row for event in events if event["ev"] == "metrics" for row in event["rows"]]
    rows = [row for row in rows if row["rank"] is not None and "memory" not in row["values"]]
    assert all(row["rank"] == 0 for row in rows)
    return [row["values"] for row in rows]


def test_what_a_script_reports_is_sent_before_its_end(tmp_path: Path) -> None:
    """Any number, any name."""
    told = told_by(tmp_path, "report(step=3, loss=0.5, tokens=4096)\nreport(**{'acc/top-1': 1, 'flag': True})\n")
    assert told == [{"step": 3, "loss": 0.5, "tokens": 4096}, {"acc/top-1": 1, "flag": 1.0}]


def test_numbers_of_other_libraries_are_taken(tmp_path: Path) -> None:
    """What float() takes; NaN and infinity, too."""
    text = "import numpy as np\nreport(loss=np.float32(0.5), n=np.array([2]), bad=np.nan, low=-np.inf, huge=10**30)\n"
    assert told_by(tmp_path, text) == [{"loss": 0.5, "n": 2.0, "bad": "nan", "low": "-inf", "huge": 1e30}]


def test_steps_of_other_libraries_are_integers(tmp_path: Path) -> None:
    """So that the time of a step is taken, as with Python's own."""
    text = "import numpy as np, time\nfor i in range(3):\n    report(step=np.int64(i))\n    time.sleep(0.4)\n"
    told = told_by(tmp_path, text)
    assert [type(row["step"]) for row in told] == [int] * 3
    assert "step_time" in told[-1]


def test_what_is_no_number_or_no_name_is_left_out(tmp_path: Path) -> None:
    """Nothing is raised, and the rest counts."""
    text = (
        "report(loss='x', a=None, b=[], c=object(), step=1, **{'no name': 2, '': 3, 'time': 4, 'rank': 5})\nreport()\n"
    )
    assert told_by(tmp_path, text) == [{"step": 1}]


def test_of_many_reports_the_last_one_is_sent(tmp_path: Path) -> None:
    """And no more rows than were asked for; those with NaN are among them."""
    text = "for step in range(100000):\n    report(step=step, loss=float('nan') if step == 777 else 0.5)\n"
    told = told_by(tmp_path, text, every=3600.0)
    assert told[-1].items() >= {"step": 99999, "loss": 0.5}.items()
    assert {"step": 777, "loss": "nan"} in told
    assert len(told) <= 24


def test_a_forked_child_reports_for_itself(tmp_path: Path) -> None:
    """What the parent has kept is not sent twice."""
    text = (
        "import os\n"
        "for step in range(30): report(step=step)\n"
        "child = os.fork()\n"
        "if not child:\n    report(child=1)\n    os._exit(0)\n"
        "os.waitpid(child, 0)\nreport(step=99)\n"
    )
    told = told_by(tmp_path, text, most=200, every=3600.0)
    steps = [row["step"] for row in told if "step" in row]
    assert (len(steps), steps[-1]) == (len(set(steps)), 99)
    assert {"child": 1} in told


def test_a_script_that_closes_all_files_reports_on(tmp_path: Path) -> None:
    """No file of the script's own is ever written to."""
    text = (
        "import os\nreport(step=1)\nos.closerange(3, 64)\n"
        "file = open('own', 'w')\nreport(step=2)\nfile.close()\nassert not open('own').read()\n"
    )
    assert [row["step"] for row in told_by(tmp_path, text)] == [1, 2]


def test_without_mslaunch_nothing_happens(tmp_path: Path) -> None:
    """The same script runs by hand."""
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(ROOT)) + "report(step=1)\nprint('ran')\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MSLAUNCH", "RANK_ID"))}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("agent", ["/nowhere", "/proc/1/fd/0", "/dev/full"])
def test_an_agent_that_is_gone_does_no_harm(agent: str) -> None:
    """Nothing is raised, whatever is there instead, and nothing is left to be sent."""
    reporter = metrics.Reporter(agent, "0")
    for step in range(100):
        reporter.add({"step": step})
    reporter.flush()
    assert not reporter._rows


def test_what_a_full_pipe_does_not_take_is_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank does not wait for its agent."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(end, b"x" * 4096)
    except BlockingIOError:
        pass
    monkeypatch.setattr(metrics, "_reporter", metrics.Reporter(str(pipe), "0"))
    report(step=1)
    report(step=2)
    os.read(end, 1 << 20)
    report(step=3)
    metrics.flush()
    lines = os.read(end, 1 << 16)
    os.close(end)
    rows = [row for message in RankMessages().feed(lines) for row in message["rows"]]
    assert [values["step"] for _, values in rows] == [1, 2, 3]


def test_a_message_is_one_write_that_is_never_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names and rows there are."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    reporter = metrics.Reporter(str(pipe), "0")
    monkeypatch.setattr(metrics, "_reporter", reporter)
    for _ in range(40):
        report(**{f"{'n' * 58}_{number}": 1 / 3 for number in range(100)})
    reporter.flush()
    lines = os.read(end, 1 << 20).splitlines()
    os.close(end)
    assert lines
    assert max(map(len, lines)) < 4096
    assert all(json.loads(line)["rows"] for line in lines)


WRONG: list[Any] = [7, [1], [[1]], [["x", {}]], [[1.0, []]], [[1.0, {}, 2]], [[-1, {}]], {"a": 1}, [[1.0, {}]] * 201]


@pytest.mark.parametrize("rows", WRONG, ids=range(len(WRONG)))
def test_wrong_rows_from_anybody_are_left_out(rows: Any) -> None:
    """The pipe to the agent is open to everything that a rank starts."""
    line = json.dumps({"what": "metrics", "rank": 0, "time": 1.0, "rows": rows}).encode()
    assert RankMessages().feed(line + b"\n") == []


def test_wrong_values_from_anybody_are_left_out(tmp_path: Path) -> None:
    """The agent sends none that the launcher would reject."""
    values = {"loss": 0.5, "a b": 1, "time": 1, "x": "0.5", "y": None, "z": True, "n": "nan", "i": 2**70, "f": 1e400}
    line = json.dumps({"what": "metrics", "rank": 0, "time": 1.0, "rows": [[1.0, values]]})
    (tmp_path / "lies").write_text(line + "\n")
    with driven_agent(tmp_path) as agent:
        agent.run('cat lies > "$MSLAUNCH_AGENT"', metrics=order())
        events = agent.until("exited")
    (row,) = [row for event in events if event["ev"] == "metrics" for row in event["rows"]]
    assert row["values"] == {"loss": 0.5, "n": "nan", "i": float(2**70), "f": "inf"}
