"""The status line of a job on terminals that are too narrow for it, and what `attach` says of a run that is over."""

from __future__ import annotations

import json

import pytest

from mslaunch.cli.console.console import LiveLines, fit_parts
from tests.beds.terminal_bed import start_in_tmux
from tests.conftest import Bench, wait_for

PARTS = ["2/2 ranks up", "epoch 1/5 step 16/20", "loss 1.3857", "3.3 steps/s", "25 s left", "1:02:03"]
STEPS = """\
import time
for step in range(1, 100_000):
    time.sleep(0.05)
    print(f"Epoch: [1/5], batch: [{step}/99999], loss: 1.385700, lr: 0.001, time: 0.05s", flush=True)
"""


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(120, ""), (79, "3.3 steps/s"), (60, "3.3 steps/s, 2/2 ranks up"), (30, "3.3 steps/s, 2/2 ranks up, loss 1.3857")],
)
def test_parts_are_left_out_whole(columns: int, left_out: str) -> None:
    """The least important first; where the job is and the clock always stay."""
    kept = fit_parts(PARTS, columns)
    assert kept[-1] == "1:02:03"
    assert "epoch 1/5 step 16/20" in kept
    assert set(left_out.split(", ")) - {""} <= set(PARTS) - set(kept)
    assert len(" | ".join(kept)) <= columns


def test_a_part_of_another_kind_stays() -> None:
    """What nobody has called unimportant may be what matters."""
    assert "no step for 47 s" in fit_parts([*PARTS[:-1], "no step for 47 s", PARTS[-1]], 50)


def test_a_live_line_that_is_cut_says_so() -> None:
    """Half a number must not look like a whole one."""
    assert "12345678…" in LiveLines().draw(["1234567890123"], 10)


def test_a_narrow_terminal_shows_the_clock(bench: Bench) -> None:
    """A real job at 60 columns."""
    bench.write("train.py", STEPS)
    made = start_in_tmux(bench, "train", "-n", "2", "--stdin", "none", "--tail", "none", columns=60)
    try:
        line = wait_for(lambda: next((line for line in made.screen() if "loss 1.3857" in line), ""), "the loss")
        assert line.split(" | ")[-1].startswith("0:")
        made.press("C-c")
        wait_for(lambda: "ended with 130" in made.text(), "the end")
    finally:
        made.run("kill-server")


def test_attach_tells_how_long_a_run_took_that_is_over(bench: Bench) -> None:
    """Not how long ago it began."""
    bench.write("train.py", "print('words')\n")
    bench.mslaunch("train", "-n", "1")
    path = bench.latest / "run.json"
    record = json.loads(path.read_text())
    record |= {"started": "2026-01-31T12:00:00.000+00:00", "ended": "2026-01-31T12:00:07.500+00:00", "seconds": 7.5}
    path.write_text(json.dumps(record))
    assert "succeeded after 7.5 s" in bench.mslaunch("attach").stdout


def test_attach_shows_no_earlier_notes_where_none_are_wanted(bench: Bench) -> None:
    """`--lines 0` means notes too."""
    bench.write("train.py", "print('words')\n")
    bench.mslaunch("train", "-n", "1")
    with (bench.latest / "events.jsonl").open("a") as file:
        file.write(json.dumps({"ev": "note", "time": 1.0, "text": "an early note"}) + "\n")
    assert "an early note" in bench.mslaunch("attach").stdout
    shown = bench.mslaunch("attach", "--lines", "0").stdout
    assert "an early note" not in shown
    assert "words" not in shown
