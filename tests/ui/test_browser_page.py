"""What the page shows of numbers: axes, curves and their colours, steps, attempts, the first screen, the list."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mslaunch.diagnose.verdict import Verdict
from mslaunch.metrics.rows import Row, Source
from mslaunch.run import record
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import AttemptSummary
from mslaunch.run.run import Run
from mslaunch.ui.page import write_report
from tests.beds.browser_bed import Visit, chromium, visit
from tests.beds.past_runs import make_run, make_running, tell_steps
from tests.beds.ui_bed import start_ui
from tests.conftest import Bench

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TEXTS = """
const own = CanvasRenderingContext2D.prototype, clearRect = own.clearRect, fillText = own.fillText;
own.clearRect = function (...where) { this.canvas.texts = []; return clearRect.apply(this, where); };
own.fillText = function (text, x, y, ...rest) {
  (this.canvas.texts ??= []).push([text, x, y]);
  return fillText.call(this, text, x, y, ...rest);
};
"""
CONTRAST = """(one) => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(one), both = [light(style.color), light(style.backgroundColor)];
  const [low, high] = both.sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""
SCREENS = {
    "phone": {"width": 390, "height": 844},
    "tablet": {"width": 1024, "height": 768},
    "desk": {"width": 1400, "height": 900},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


def tell(folder: RunFolder, told: Mapping[Source, Sequence[Mapping[str, Any]]], pace: float = 1.0) -> None:
    """Write rows of sources, one a second."""
    begin = time.time() - 3600
    writer = MetricsWriter(folder.metrics)
    for source, rows in told.items():
        writer.write([Row(begin + at * pace, source, values) for at, values in enumerate(rows)])
    writer.close()


@contextmanager
def report(browser: Browser, folder: RunFolder, **how: Any) -> Iterator[Visit]:
    """The report of a run in a browser; texts of canvases are kept."""
    path = write_report(Run(folder), folder.path / "report.html")
    with visit(browser, **how) as found:
        found.page.add_init_script(TEXTS)
        found.page.goto(path.as_uri())
        found.page.locator("#end .tiles").wait_for()
        yield found


def drawn(page: Visit, chart: str) -> list[tuple[str, float, float]]:
    """The texts on the canvas of a chart, with their places."""
    figure = page.page.locator("figure", has=page.page.get_by_text(chart, exact=True))
    return [(text, x, y) for text, x, y in figure.locator("canvas").evaluate("(one) => one.texts")]


def axis_of(page: Visit, chart: str) -> tuple[list[str], list[str], str]:
    """The labels of the values, those of the places, and the name of the places."""
    texts = drawn(page, chart)
    *labels, name = texts
    foot = max(y for _, _, y in labels)
    return [text for text, _, y in labels if y < foot], [text for text, _, y in labels if y == foot], name[0]


@pytest.mark.parametrize("steps", [range(1, 3), range(1, 8), range(1, 16), range(97, 104), range(500, 90_000, 997)])
@pytest.mark.parametrize("screen", ["phone", "desk"])
def test_an_axis_has_a_name_and_several_labels(browser: Browser, tmp_path: Path, steps: range, screen: str) -> None:
    """Whatever the steps are, and by time as well."""
    folder = make_run(tmp_path, "one")
    tell(folder, {Source(0, 0): [{"step": step, "loss": 1 / step} for step in steps]}, pace=61)
    with report(browser, folder, viewport=SCREENS[screen]) as page:
        _, places, name = axis_of(page, "loss")
        assert (len(places) >= 2, name) == (True, "step")
        assert len(set(places)) == len(places)
        page.page.locator("#curves select").select_option("time")
        _, places, name = axis_of(page, "loss")
        assert (len(set(places)) >= 2, name) == (True, "time")


@pytest.mark.parametrize(
    ("name", "values"),
    [("memory", [10_200_000, 10_201_000, 10_204_000]), ("loss", [0.12345, 0.12346, 0.12347]), ("threads", [3, 3, 3])],
)
def test_labels_of_values_differ(browser: Browser, tmp_path: Path, name: str, values: list[float]) -> None:
    """They have as many digits as the distance of two needs."""
    folder = make_run(tmp_path, "one")
    tell(folder, {Source(0, 0): [{"step": step, name: value} for step, value in enumerate(values)]})
    with report(browser, folder) as page:
        labels, _, _ = axis_of(page, name)
        assert len(labels) >= 2
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name", ["read_rate", "step_time", "memory"])
def test_what_cannot_be_negative_has_no_negative_label(browser: Browser, tmp_path: Path, name: str) -> None:
    """A rate that is 0 all the time is a line at the foot."""
    folder = make_run(tmp_path, "one")
    tell(folder, {Source(0, 0): [{"step": step, name: 0} for step in range(5)]})
    with report(browser, folder) as page:
        labels, _, _ = axis_of(page, name)
        assert labels
        assert not [label for label in labels if label.startswith("-")]


def test_the_curves_of_many_ranks_are_told_apart(browser: Browser, tmp_path: Path) -> None:
    """16 ranks by colour and dash, and the legend names the grey line."""
    folder = make_run(tmp_path, "one", ranks=64)
    rows = [{"step": step, "loss": 1 / step} for step in range(1, 16)]
    tell(folder, {Source(0, rank): rows for rank in range(64)})
    with report(browser, folder) as page:
        legend = page.page.locator("#curves .legend li")
        assert legend.last.inner_text() == "median of 64 ranks; shade: least to greatest"
        looks = legend.locator(".stroke").evaluate_all("(all) => all.map((one) => one.style.background)")
        assert len(set(looks)) == len(looks) == 17


def test_attempts_are_counted_from_1_and_look_different(browser: Browser, tmp_path: Path) -> None:
    """In curves, in the verdicts of earlier attempts and in the timeline."""
    folder = make_run(tmp_path, "one", ranks=1)
    earlier = AttemptSummary(0, None, 1, Verdict(cause="exception", summary="RuntimeError: lost"), None)
    record.save(folder, replace(record.read(folder), attempts=(earlier,)))
    rows = [{"step": step, "loss": 1 / step} for step in range(1, 5)]
    tell(folder, {Source(attempt, 0): rows for attempt in range(2)})
    with report(browser, folder) as page:
        assert page.page.locator("#end summary").inner_text() == "Attempt 1: RuntimeError: lost"
        assert {row[0] for row in page.table("loss")} == {"rank 0, attempt 1", "rank 0, attempt 2"}
        looks = page.page.locator("#curves .stroke").evaluate_all("(all) => all.map((one) => one.style.background)")
        assert len(set(looks)) == 2


def test_steps_are_written_with_all_digits(browser: Browser, tmp_path: Path) -> None:
    """In the table of ranks, in the first words and beside the curve."""
    folder = make_run(tmp_path, "one", ranks=1)
    tell(folder, {Source(0, 0): [{"step": step, "loss": 0.5} for step in (1_250_011, 1_250_012)]})
    with report(browser, folder) as page:
        assert page.page.locator("#ranks tbody td").nth(5).inner_text() == "1250012"
        assert page.page.locator("#end .tiles dd").nth(1).inner_text() == "1250012"
        assert page.table("loss")[-1][1] == "1250012"


@pytest.mark.parametrize(
    ("values", "row", "tile"),
    [
        ({"epoch": 3, "epochs": 3, "step": 20, "steps": 20, "total_step": 60}, "60", "60 of 60"),
        ({"epoch": 2, "epochs": 10, "step": 9, "steps": 20}, "2/10 · 9/20", "2/10 · 9/20"),
        ({"epoch": 2, "step": 9}, "epoch 2 · 9", "epoch 2 · 9"),
        ({"step": 9, "steps": 20}, "9/20", "9/20"),
    ],
)
def test_a_step_within_an_epoch_is_not_shown_alone(
    browser: Browser, tmp_path: Path, values: dict[str, int], row: str, tile: str
) -> None:
    """The steps of all epochs where they are known, else epoch and batch."""
    folder = make_run(tmp_path, "one", ranks=1)
    tell(folder, {Source(0, 0): [{**values, "loss": 0.5}]})
    with report(browser, folder) as page:
        assert page.page.locator("#ranks tbody td").nth(5).inner_text() == row
        assert page.page.locator("#end .tiles dd").nth(1).inner_text() == tile


def test_steps_that_begin_again_are_drawn_by_time(browser: Browser, tmp_path: Path) -> None:
    """A curve does not run back over itself, and the axis says what it is."""
    folder = make_run(tmp_path, "one", ranks=1)
    rows = [{"epoch": epoch, "step": step, "loss": 1.0} for epoch in (1, 2) for step in range(1, 5)]
    tell(folder, {Source(0, 0): rows})
    with report(browser, folder) as page:
        assert axis_of(page, "loss")[2] == "time"


def test_charts_have_one_order_and_counters_are_folded_away(browser: Browser, tmp_path: Path) -> None:
    """Whichever number came first."""
    folder = make_run(tmp_path, "one", ranks=1)
    rows = [{"epoch": 1, "step": step, "zeta": 1.0, "alpha": 2.0, "loss": 0.5} for step in range(3)]
    tell(folder, {Source(0, 0): rows})
    with report(browser, folder) as page:
        curves = page.page.locator("#curves")
        assert curves.locator("figcaption").all_inner_texts() == ["loss", "alpha", "zeta", "", ""]
        curves.get_by_text("Counters").click()
        assert curves.locator(".counters figcaption").all_inner_texts() == ["step", "epoch"]
        assert axis_of(page, "step")[2] == "time"


def test_the_cursor_of_the_keyboard_is_told(browser: Browser, tmp_path: Path) -> None:
    """A screen reader reads the values at the place, of charts and of the heat map."""
    folder = make_run(tmp_path, "one", ranks=1)
    tell(folder, {Source(0, 0): [{"step": step, "loss": 0.5, "step_time": 2.0} for step in range(3)]})
    with report(browser, folder) as page:
        page.page.locator("#curves canvas").first.press("ArrowRight")
        assert page.page.locator("#curves .plot [role=status]").first.inner_text() == "step 1, rank 0 0.5"
        page.page.locator("#heat canvas").press("ArrowRight")
        assert page.page.locator("#heat [role=status]").last.inner_text().endswith(": 2 s")


def test_the_label_of_the_first_row_is_not_clipped(browser: Browser, tmp_path: Path) -> None:
    """Rows of 64 ranks are thinner than their labels."""
    folder = make_run(tmp_path, "one", ranks=64)
    tell(folder, {Source(0, rank): [{"step": 1, "step_time": 2.0}] * 2 for rank in range(64)})
    with report(browser, folder) as page:
        texts = page.page.locator("#heat canvas").evaluate("(one) => one.texts")
        assert min(y for text, _, y in texts if text == "0") >= 6


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_key_of_the_timeline_is_readable_and_true(browser: Browser, tmp_path: Path, theme: str) -> None:
    """It has no failure where there is none; texts have a contrast of 4.5."""
    folder = make_run(tmp_path, "one", ranks=1)
    started = '{"ev": "started", "role": "worker", "rank": 0, "time": 1.0, "host": "h", "pid": 1}\n'
    ended = '{"ev": "exited", "role": "worker", "rank": 0, "time": 9.0, "host": "h", "pid": 1, "code": 0}\n'
    folder.events.write_text(started + ended)
    with report(browser, folder, color_scheme=theme) as page:
        key = page.page.locator("#timeline .key .phase")
        assert key.all_inner_texts() == ["running"]
    folder.events.write_text(started + ended.replace('"code": 0', '"code": 1'))
    with report(browser, folder, color_scheme=theme) as page:
        key = page.page.locator("#timeline .key .phase")
        assert key.all_inner_texts() == ["running", "failure"]
        assert min(one.evaluate(CONTRAST) for one in key.all()) >= 4.5


@pytest.mark.parametrize("screen", SCREENS)
def test_the_first_screen_says_how_good_and_how_fast(browser: Browser, tmp_path: Path, screen: str) -> None:
    """Loss, step and speed without scrolling; why a run failed stands above them."""
    folder = make_run(tmp_path, "one", "failed", ranks=1)
    verdict = Verdict(cause="exception", summary="ValueError: wrong", rank=0, host="n0")
    record.save(folder, replace(record.read(folder), verdict=verdict))
    tell(folder, {Source(0, 0): [{"step": step, "loss": 0.5, "step_time": 0.25} for step in range(1, 5)]})
    with report(browser, folder, viewport=SCREENS[screen]) as page:
        assert page.page.locator("#end .tiles dt").all_inner_texts() == ["Loss", "Step", "Speed", "State"]
        assert page.page.locator("#end .tiles dd").all_inner_texts()[:3] == ["0.5", "4", "4 steps/s"]
        why, tiles = page.page.locator(".verdict").bounding_box(), page.page.locator(".tiles").bounding_box()
        assert why is not None
        assert tiles is not None
        assert why["y"] < tiles["y"] < SCREENS[screen]["height"]


def test_a_run_that_hangs_says_so(browser: Browser, tmp_path: Path) -> None:
    """Beside its state; axes of time end now, and it has not `taken` its time yet."""
    folder = make_running(tmp_path, "one")
    tell_steps(folder, ago=600)
    with report(browser, folder) as page:
        state = page.page.locator("header .title > span").inner_text()
        assert re.fullmatch(r"running no step for 1\d min( \d+ s)?", state)
        assert page.page.locator("#end dt", has_text="Running for").count() == 1
        assert page.page.locator("#end dt", has_text="Took").count() == 0
        page.page.locator("#curves select").select_option("time")
        assert axis_of(page, "loss")[1][-1] == "24 h"  # it began a day ago


@pytest.fixture
def listed(bench: Bench) -> Bench:
    """A folder with a run that has failed and one that has not."""
    bench.runs.mkdir()
    failed = make_run(bench.runs, "wrong", "failed")
    why = "ValueError: expected 224x224x3, got 224x224x4" + ", as the files of the other folder have it" * 3
    verdict = Verdict(cause="exception", summary=why)
    record.save(failed, replace(record.read(failed), verdict=verdict))
    good = make_run(bench.runs, "20260301-101500-3f2a", days=0.5)
    tell(good, {Source(0, 0): [{"step": 123456, "loss": 0.123456}]})
    good.plan.write_text('{"program": {"args": ["--lr", "0.3"]}}')
    return bench


@pytest.mark.parametrize("screen", SCREENS)
def test_the_list_fits_its_screen(browser: Browser, listed: Bench, screen: str) -> None:
    """Loss, and why a run failed, without scrolling sideways; no name or date is wrapped, and no column is empty."""
    ui = start_ui(listed)
    with visit(browser, viewport=SCREENS[screen]) as page:
        page.page.goto(ui.url)
        page.page.get_by_role("link", name="wrong").wait_for()
        assert page.page.locator("#runs .given").first.inner_text().endswith(" --lr 0.3")
        for words in ("0.12346", "ValueError: expected 224x224x3, got 224x224x4"):
            box = page.page.locator("#runs").get_by_text(words).locator("visible=true").bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= SCREENS[screen]["width"]
        heads = page.page.locator("#runs th").all_inner_texts()
        assert not {"tags", "note"} & set(heads)
        if screen == "desk":
            heights = page.page.locator("#runs td.short, #runs .name a").evaluate_all(
                "(all) => all.map((one) => { const range = document.createRange(); range.selectNodeContents(one);"
                " return range.getClientRects().length; })"
            )
            assert max(heights) == 1
            assert "123456" in page.page.locator("#runs tbody").inner_text()
    ui.process.terminate()
    ui.process.wait(timeout=60)
