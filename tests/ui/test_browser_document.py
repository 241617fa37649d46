"""The document of a run: curves, heat map, timeline and logs, each within its bounds."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mslaunch.metrics.rows import Row, Source, Spread
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.ui import log_text
from mslaunch.ui.bounds import REPORT
from mslaunch.ui.curves import make_curves, make_heat
from mslaunch.ui.document import describe_events, make_timeline, read_events
from mslaunch.ui.library import Library
from mslaunch.ui.log_text import search, shown_line, window, window_before
from mslaunch.ui.page import report_page
from tests.beds.past_runs import make_run


def table_of(ranks: int, steps: int, name: str = "loss") -> SeriesTable:
    table = SeriesTable()
    for rank in range(ranks):
        values = ((step, float(rank * 1000 + step)) for step in range(steps))
        table.add(Row(100.0 + step, Source(0, rank), {"step": step, name: value}) for step, value in values)
    return table


def test_a_short_curve_has_every_point() -> None:
    """With its time since the start, its step and its value."""
    curve = next(one for one in make_curves(table_of(1, 3), 100.0, REPORT) if one["name"] == "loss")
    assert (curve["kind"], curve["rank"], curve["attempt"]) == ("rank", 0, 0)
    assert (curve["t"], curve["s"], curve["v"]) == ([0, 1, 2], [0, 1, 2], [0, 1, 2])
    assert "lo" not in curve


def test_a_long_curve_keeps_its_extremes_within_bounds() -> None:
    """A peak of one step of 100,000 is there, and so is the last value."""
    table = SeriesTable()
    table.add(Row(float(step), Source(0, 0), {"loss": 99.0 if step == 54321 else 1.0}) for step in range(100_000))
    (curve,) = make_curves(table, 0.0, replace(REPORT, points=500))
    assert len(curve["t"]) <= 500
    assert max(curve["hi"]) == 99
    assert curve["t"][-1] == 99_999


def test_a_number_that_is_not_finite_is_seen_in_a_thinned_curve() -> None:
    """One NaN among many numbers is what somebody looks for."""
    table = SeriesTable()
    table.add(Row(float(step), Source(0, 0), {"loss": math.nan if step == 777 else 1.0}) for step in range(10_000))
    (curve,) = make_curves(table, 0.0, replace(REPORT, points=100))
    assert curve["v"].count("nan") == 1
    json.dumps(curve, allow_nan=False)


def test_rows_that_were_thinned_before_keep_their_extremes() -> None:
    """The file has made one row of eight."""
    table = SeriesTable()
    table.add([Row(1.0, Source(0, 0), {"loss": Spread(2.0, 1.0, 9.0)}, 8)])
    (curve,) = make_curves(table, 0.0, REPORT)
    assert (curve["v"], curve["lo"], curve["hi"]) == ([2], [1], [9])


def test_many_ranks_have_a_band_and_those_that_are_wanted() -> None:
    """The band is the least, the median and the greatest of all; points stay within bounds."""
    curves = make_curves(table_of(1000, 50), 100.0, REPORT, first_ranks=(777,))
    losses = [curve for curve in curves if curve["name"] == "loss"]
    band = next(curve for curve in losses if "all" in curve)
    own = {curve["rank"] for curve in losses if "rank" in curve}
    assert band["all"] == 1000
    assert (band["lo"][-1], band["v"][-1], band["hi"][-1]) == (49, 499_549, 999_049)
    assert 777 in own
    assert len(own) <= REPORT.sources
    assert sum(len(curve["t"]) for curve in curves) <= REPORT.points


def test_attempts_are_curves_of_their_own() -> None:
    """A restart does not draw a line back to the first step."""
    table = table_of(1, 3)
    table.add([Row(200.0, Source(1, 0), {"step": 2, "loss": 5.0})])
    losses = [curve for curve in make_curves(table, 100.0, REPORT) if curve["name"] == "loss"]
    assert [curve["attempt"] for curve in losses] == [0, 1]


def test_the_heat_map_shows_who_was_slow_and_when() -> None:
    """Rank 1 takes three times as long in the second half."""
    table = SeriesTable()
    for rank in range(3):
        took = ((step, 3.0 if rank == 1 and step >= 50 else 1.0) for step in range(100))
        table.add(Row(float(step), Source(0, rank), {"step_time": seconds}) for step, seconds in took)
    heat = make_heat(table, 0.0, replace(REPORT, columns=10))
    assert heat is not None
    assert heat["rows"] == ["0", "1", "2"]
    assert heat["cells"][0] == [1] * 10
    assert (heat["cells"][1][:4], heat["cells"][1][-4:]) == ([1] * 4, [3] * 4)


def test_step_times_come_from_steps_where_none_are_told() -> None:
    """Ten steps in five seconds are half a second each."""
    table = SeriesTable()
    table.add(Row(at * 5.0, Source(0, 0), {"step": at * 10}) for at in range(4))
    heat = make_heat(table, 0.0, REPORT)
    assert heat is not None
    assert {value for value in heat["cells"][0] if value is not None} == {0.5}


def test_a_step_time_holds_for_the_time_before_it_was_told() -> None:
    """A job that tells it every hundred steps has no holes in its heat map."""
    table = SeriesTable()
    table.add(Row(time, Source(0, 0), {"step_time": took}) for time, took in ((0.0, 1), (1.0, 2), (9.0, 3)))
    heat = make_heat(table, 0.0, replace(REPORT, columns=10))
    assert heat is not None
    assert heat["cells"] == [[1.5, 3, 3]]


def test_many_ranks_share_rows_of_the_heat_map() -> None:
    """A row shows the slowest of its ranks."""
    table = SeriesTable()
    for rank in range(1000):
        table.add([Row(1.0, Source(0, rank), {"step_time": 9.0 if rank == 500 else 1.0})])
    heat = make_heat(table, 0.0, REPORT)
    assert heat is not None
    assert len(heat["rows"]) <= REPORT.rows
    slow = next(name for name, row in zip(heat["rows"], heat["cells"], strict=True) if 9 in row)
    first, last = map(int, slow.split("-"))
    assert first <= 500 <= last


def test_a_timeline_has_a_span_for_every_attempt_of_a_rank() -> None:
    """A failure is told from a rank that was stopped because of it."""
    events = [
        {"ev": "started", "role": "worker", "rank": 0, "time": 10.0},
        {"ev": "started", "role": "worker", "rank": 1, "time": 10.5},
        {"ev": "joined", "rank": 0, "time": 12.0},
        {"ev": "error", "rank": 1, "time": 13.0, "message": "x"},
        {"ev": "stopping", "time": 13.1},
        {"ev": "exited", "role": "worker", "rank": 1, "time": 13.2, "code": 1, "signal": None},
        {"ev": "exited", "role": "worker", "rank": 0, "time": 13.3, "code": None, "signal": 15},
        {"ev": "restart", "attempt": 1, "time": 14.0},
        {"ev": "started", "role": "worker", "rank": 0, "time": 15.0},
    ]
    spans = make_timeline(events, 10.0, REPORT)["spans"]
    assert spans[0] == {
        "rank": 0,
        "attempt": 0,
        "started": 0.0,
        "joined": 2.0,
        "ended": 3.3,
        "code": None,
        "signal": 15,
        "stopped": True,
    }
    assert spans[1] == {"rank": 0, "attempt": 1, "started": 5.0}
    assert (spans[2]["failed"], spans[2]["stopped"]) == (3.0, False)


def test_events_that_are_none_are_left_out(tmp_path: Path) -> None:
    """Whatever stands in the file, the page gets lists of text."""
    path = tmp_path / "events.jsonl"
    wrong = ["[]", "{", '{"ev": 5}', "[" * 5000, '{"ev": "x", "time": "soon", "rank": "<b>", "why": {"a": [1]}}', "\0"]
    path.write_text("\n".join([*wrong, '{"ev": "note", "time": 2.0, "text": "a\\u001b[31mb"}', ""]))
    events = list(read_events(path))
    assert [event["ev"] for event in events] == ["x", "note"]
    assert describe_events(events, 1.0, 10, str) == [
        [None, "x", "", 'why {"a": [1]}'],
        [1.0, "note", "", "a\\x1b[31mb"],
    ]
    make_timeline(events, 0.0, REPORT)


@pytest.mark.parametrize(
    ("event", "name", "words"),
    [
        ({"ev": "hello", "pid": 7}, "agent started", "pid 7"),
        ({"ev": "exited", "rank": 1, "code": 1, "signal": None, "asked": False}, "process has ended", "exit code 1"),
        ({"ev": "exited", "rank": 1, "signal": 15, "asked": True}, "process has ended", "signal 15, as asked"),
        ({"ev": "error", "message": "ValueError: wrong"}, "exception", "ValueError: wrong"),
        ({"ev": "restart", "attempt": 1}, "restart", "attempt 2"),
        ({"ev": "start-failed", "why": "no such file"}, "start failed", "no such file"),
        ({"ev": "idle"}, "nothing left on the host", ""),
        ({"ev": "restart", "attempt": "x", "asked": [1], "message": {}}, "restart", "attempt x, {}"),
    ],
)
def test_events_are_said_in_plain_words(event: dict[str, object], name: str, words: str) -> None:
    """Neither names nor fields are those of the protocol; the line with its version is no event."""
    shown = describe_events([{"ev": "schema", "schema_version": "1.3"}, event], 0.0, 10, str)
    assert [(row[1], row[3]) for row in shown] == [(name, words)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"10%\r20%\r30%\r", "30%"),
        (b"a\0b", "a\\x00b"),
        (b"\x1b]0;title\x07x", "x"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_line_of_a_log_is_text(line: bytes, text: str) -> None:
    """Colours and what was written over are left out, other control characters are shown."""
    assert shown_line(line) == text


def test_a_line_without_end_is_cut() -> None:
    """10 MB of it are not sent to a page."""
    text = shown_line(b"x" * 10_000_000)
    assert len(text) < 2200
    assert text.endswith("bytes left out, see the log")


def test_a_log_is_read_in_windows_forwards_and_backwards(tmp_path: Path) -> None:
    """Whole lines each, none twice and none lost."""
    path = tmp_path / "log.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1000)) + "unfinished")
    last = window(tmp_path, path, None, 200)
    assert last.lines[-1] == "line 999"
    before = window_before(tmp_path, path, last.start, 200)
    assert before.end == last.start
    assert int(before.lines[-1].split()[1]) + 1 == int(last.lines[0].split()[1])
    assert window(tmp_path, path, last.end, 200).lines == ()
    assert window(tmp_path, path, last.end, 200, with_rest=True).lines == ("unfinished",)
    at, lines = 0, list[str]()
    while (found := window(tmp_path, path, at, 200)).lines:
        lines += found.lines
        at = found.end
    assert lines == [f"line {number}" for number in range(1000)]


def test_a_log_is_searched_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any case, with the offset of each line; a call ends after a bounded piece and says where to go on."""
    monkeypatch.setattr(log_text, "SEARCHED", 5000)
    monkeypatch.setattr(log_text, "BLOCK", 1000)
    path = tmp_path / "log.txt"
    path.write_text("".join(f"line {number} {'ERROR' if number % 500 == 7 else ''}\n" for number in range(2000)))
    found: list[tuple[int, str]] = []
    at: int | None = 0
    calls = 0
    while at is not None:
        hits = search(tmp_path, path, "error", at)
        found += hits.found
        at, calls = hits.then, calls + 1
    assert [text.split()[1] for _, text in found] == ["7", "507", "1007", "1507"]
    assert calls > 3
    assert window(tmp_path, path, found[2][0]).lines[0].startswith("line 1007 ")


def test_a_link_out_of_the_run_is_not_read(tmp_path: Path) -> None:
    """Nor is a pipe, which would never answer."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.txt").symlink_to(secret)
    os.mkfifo(run / "pipe")
    assert window(run, run / "log.txt", None).lines == ()
    assert search(run, run / "log.txt", "secret").found == ()
    assert window(run, run / "pipe", None).lines == ()


def test_no_text_ends_the_script_that_holds_it() -> None:
    """The document of a report is JSON in HTML: neither a closing tag nor a comment survives in it."""
    page = report_page("<b>", {"text": "</script><!--<script>\u2028"})
    held = page.partition('id="document">')[2].partition("</script>")[0]
    assert json.loads(held) == {"text": "</script><!--<script>\u2028"}
    assert "<title>&lt;b&gt;</title>" in page


def test_the_list_has_the_numbers_of_the_first_rank(tmp_path: Path) -> None:
    """As curves, comparison and live line do, whichever rank told something last; of the newest attempt."""
    folder = make_run(tmp_path, "one")
    writer = MetricsWriter(folder.metrics)
    told = ((0, 0, 9, 9.0), (1, 0, 1, 0.75), (1, 0, 2, 0.5), (1, 1, 1, 0.9))
    writer.write([Row(1.0, Source(attempt, rank), {"step": step, "loss": loss}) for attempt, rank, step, loss in told])
    writer.close()
    (listed,) = Library(str(tmp_path)).summaries()
    assert listed["values"] == {"step": 2, "loss": 0.5}
