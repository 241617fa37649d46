"""A console that fails: the job does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mslaunch.launcher.attempt.notices import Notice
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.execute import execute
from mslaunch.launcher.read import Request
from tests.beds.launch_bed import ready
from tests.conftest import Bench


@pytest.mark.parametrize("at", ["started", "lines", "exited"])
def test_an_exception_in_the_console_does_not_end_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whenever it is raised, the exit code and the verdict are right, and events.jsonl has one console-lost event."""
    bench.write("train.py", "print('hello', flush=True)\nraise SystemExit(7)\n")
    monkeypatch.chdir(bench.folder)
    launch = ready(Request(flags={"workers": 1}))
    seen: list[str] = []

    def observe(notice: Notice, run_state: RunState, shown: Callable[[], None]) -> None:
        del run_state, shown
        name = notice["ev"] if isinstance(notice, dict) else notice.ev
        seen.append(name)
        if name == at:
            raise ZeroDivisionError("no screen")

    final = execute(launch, launch.site.open(), observe)
    assert (final.state, final.exit_code) == ("failed", 7)
    assert final.verdict is not None
    assert final.verdict.summary == "exited with code 7"
    events = [json.loads(line) for line in launch.folder.events.read_text().splitlines()]
    lost = [event["traceback"] for event in events if event["ev"] == "console-lost"]
    assert [traceback.splitlines()[-1] for traceback in lost] == ["ZeroDivisionError: no screen"]
    assert [event["ev"] for event in events][-1] == "idle"
    assert seen[-1] == at
