"""`mslaunch report` in a real browser: one file, no network, right values, hostile logs as text."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mslaunch.run.metrics_file import Metrics
from tests.beds.browser_bed import Visit, chromium, visit
from tests.beds.run_bed import newest, tell
from tests.conftest import MSLAUNCH, Bench

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Rank 1 fails when the others have said all: they would be ended before it otherwise.
HOSTILE = """import os, sys, time
from pathlib import Path
rank = int(os.environ["RANK_ID"])
out = sys.stdout
print("y" * 3_000_000)
print("z" * 20_000)
print("hello from", rank)
print("<script>document.title = 'taken'</script><img src=x onerror=alert(1)>")
print("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 nul:\\0:")
out.flush()
Path(__file__).with_name(f"said.{rank}").touch()
while rank == 1 and len(list(Path(__file__).parent.glob("said.*"))) < 4:
    time.sleep(0.01)
if rank == 1:
    raise ValueError("</script><script>document.title = 'taken'</script>")
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose rank 1 fails, with numbers of four ranks."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "train.py").write_text(HOSTILE)
    (folder / "cfg.yaml").write_text("lr: 0.1\napi_token: hush\nname: </script><b>\n")
    command = [MSLAUNCH, "train", "--workers", "4", "--config", "cfg.yaml", "--tail", "none"]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    tell(newest(folder / "mslaunch-runs"))
    subprocess.run([MSLAUNCH, "report", "-o", "report.html"], cwd=folder, check=True, capture_output=True)
    return folder / "report.html"


@pytest.fixture
def shown(browser: Browser, failed: Path) -> Iterator[Visit]:
    with visit(browser) as found:
        found.page.goto(failed.as_uri())
        found.page.locator("#curves canvas").first.wait_for()
        yield found


def test_curves_have_the_values_of_the_run(shown: Visit, failed: Path) -> None:
    """The table beside a curve, which is what is drawn, has the numbers of metrics.jsonl."""
    metrics = Metrics(newest(failed.parent / "mslaunch-runs").folder.metrics)
    rows = shown.table("loss")
    for rank in range(4):
        told = metrics.series("loss", rank)
        found = {int(step): float(loss) for name, step, loss in rows if name == f"rank {rank}"}
        assert len(found) > 50
        expected = {int(step): value for step, value in zip(told.step, told.value, strict=True)}
        assert all(loss == pytest.approx(expected[step], rel=1e-4) for step, loss in found.items())
        assert max(found) == 399


def test_the_rank_filter_leaves_the_ranks_that_are_named(shown: Visit) -> None:
    """And a text that names none is marked as wrong."""
    ranks = shown.page.locator("#curves").get_by_label("Ranks", exact=True)
    ranks.fill("1,3")
    assert {row[0] for row in shown.table("loss")} == {"rank 1", "rank 3"}
    ranks.fill("one")
    assert ranks.get_attribute("aria-invalid") == "true"


def test_curves_are_drawn_by_step_or_by_time(shown: Visit) -> None:
    """Time is counted from the start of the run."""
    shown.page.locator("#curves select").select_option("time")
    assert re.fullmatch(r"[67] min( \d+ s)?", shown.table("loss")[-1][1])
    shown.page.locator("#curves select").select_option("step")
    assert shown.table("loss")[-1][1] == "399"


def test_a_zoom_holds_for_all_charts_until_it_is_taken_back(shown: Visit) -> None:
    """By the mouse and by the keyboard."""
    loss, rate = shown.page.locator("#curves canvas").all()[:2]
    wide = rate.screenshot()
    box = loss.bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + 200, box["y"] + 50)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 300, box["y"] + 60)
    shown.page.mouse.up()
    shown.page.mouse.move(0, 0)
    assert rate.screenshot() != wide
    shown.page.get_by_role("button", name="Whole range").first.click()
    assert rate.screenshot() == wide
    loss.press("+")
    assert rate.screenshot() != wide


@pytest.mark.parametrize(("name", "value"), [("Smoothing", "0.9"), ("Log scale", "on")])
def test_smoothing_and_the_log_scale_change_what_is_drawn(shown: Visit, name: str, value: str) -> None:
    """The values in the table stay those that were told."""
    canvas = shown.page.locator("#curves canvas").first
    told, before = shown.table("loss"), canvas.screenshot()
    control = shown.page.locator("#curves").get_by_label(name)
    if value == "on":
        control.check()
    else:
        control.fill(value)
    assert canvas.screenshot() != before
    assert shown.table("loss") == told


def test_the_verdict_stands_on_top_with_its_traceback(shown: Visit) -> None:
    """As text, whatever the exception said."""
    verdict = shown.page.locator(".verdict")
    assert "Rank 1 on localhost" in verdict.inner_text()
    assert "</script><script>document.title" in verdict.locator("pre").inner_text()


def test_a_run_takes_as_long_as_its_record_says(shown: Visit, failed: Path) -> None:
    """The page shows the seconds of the record, as the terminal does, not those since the first word of an agent."""
    seconds = newest(failed.parent / "mslaunch-runs").record.seconds
    shown_seconds = shown.page.locator("#end dt", has_text="Took").locator("xpath=following-sibling::dd").inner_text()
    assert float(shown_seconds.removesuffix(" s")) == pytest.approx(seconds, abs=0.1)


def test_ranks_that_join_nothing_are_running_in_the_timeline(shown: Visit) -> None:
    """A script without init() would be starting for as long as it runs."""
    assert shown.page.locator("#timeline .key .phase").all_inner_texts() == ["running", "failure"]
    assert shown.page.locator("#timeline .track .phase.running").count() == 4


def test_what_a_log_contains_is_shown_as_text(shown: Visit) -> None:
    """Tags, colours, NUL and a line of 3 MB: nothing of it is run, and the page stays short."""
    shown.page.get_by_label("Log of").select_option("rank 0")
    text = shown.page.locator("#logs .log").inner_text()
    assert "left out, see the log\nhello from 0\n<script>document.title = 'taken'</script><img src=x" in text
    assert "red  nul:\\x00:" in text
    assert shown.page.locator("main img, main script, main b[onerror]").count() == 0
    assert shown.page.title().endswith(": failed")


def test_lines_of_a_log_are_filtered(shown: Visit) -> None:
    """The words that were looked for are marked."""
    shown.page.get_by_label("Log of").select_option("rank 1")
    shown.page.get_by_label("Lines with").fill("valueerror")
    assert "ValueError" in shown.page.locator("#logs mark").first.inner_text()


def test_a_report_asks_for_nothing(shown: Visit, failed: Path) -> None:
    """No request leaves the file, and no secret of the configuration is in it."""
    shown.page.wait_for_load_state("networkidle")
    others = [url for url in shown.asked if not url.startswith(("file:", "data:"))]
    assert others == []
    text = failed.read_text()
    assert "hush" not in text
    assert len(text) < 3_000_000


def test_colours_follow_the_system_and_the_switch(browser: Browser, failed: Path) -> None:
    """Dark where the system is, light where the button says so."""
    with visit(browser, color_scheme="dark", viewport={"width": 390, "height": 800}) as found:
        found.page.goto(failed.as_uri())
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = found.page.evaluate(colour)
        found.page.get_by_role("button", name="Use light colours").click()
        assert found.page.evaluate(colour) != dark
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_everything_can_be_reached_and_has_a_name(shown: Visit) -> None:
    """Every control, canvas and region has an accessible name."""
    nameless = """[...document.querySelectorAll("button, input, select, canvas, [role=region]")].filter((one) =>
        !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
        .map((one) => one.outerHTML)"""
    assert shown.page.evaluate(nameless) == []


def test_a_report_is_written_at_the_end_of_a_run(bench: Bench) -> None:
    """`launch.report: true`; into the run's folder, for the owner alone."""
    bench.write("train.py", "print('step 1')")
    bench.write("cfg.yaml", "launch: {report: true}\n")
    done = bench.mslaunch("train", "--config", "cfg.yaml")
    path = bench.latest / "report.html"
    assert done.returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert '"state":"succeeded"' in path.read_text()
    assert f"report: {bench.record()['notes'][-1].removeprefix('report: ')}" in done.stdout + done.stderr


def test_a_report_that_cannot_be_written_does_not_change_the_exit_code(bench: Bench) -> None:
    """The run says why there is none."""
    script = "import os; os.mkdir(os.path.join(os.environ['MSLAUNCH_RUN_DIR'], 'report.html'))"
    bench.write("train.py", script)
    bench.write("cfg.yaml", "launch: {report: true}\n")
    done = bench.mslaunch("train", "--config", "cfg.yaml")
    assert done.returncode == 0
    assert "the report cannot be written" in bench.record()["notes"][-1]


def test_a_report_goes_where_it_is_wanted(bench: Bench) -> None:
    """A file, the standard output or JSON; a place that cannot be written is told in one sentence."""
    bench.write("train.py", "print('hello')")
    bench.mslaunch("train")
    assert bench.mslaunch("report", "-o", "-").stdout.startswith("<!doctype html>")
    assert json.loads(bench.mslaunch("report", "--json").stdout)["record"]["state"] == "succeeded"
    wrong = bench.mslaunch("report", "-o", "missing/report.html")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (3, 1)
    assert "cannot be written (No such file or directory). Name another file with -o." in wrong.stderr


def test_the_report_of_many_ranks_stays_small(bench: Bench) -> None:
    """1,024 ranks with long logs and numbers of each: below 3 MB, with the rank that failed."""
    ranks = 1024
    bench.write("train.py", "raise ValueError('wrong')")
    bench.mslaunch("train")
    run = newest(bench.runs)
    raw = bench.record()
    raw["ranks"] = [{**raw["ranks"][0], "rank": rank} for rank in range(ranks)]
    raw["world_size"], raw["verdict"]["rank"] = ranks, 700
    run.folder.record.write_text(json.dumps(raw))
    for rank in range(ranks):
        run.folder.log(rank).parent.mkdir(exist_ok=True)
        run.folder.log(rank).write_text(f"rank {rank} says this\n" * 400)
    tell(run, ranks=ranks, steps=range(30))
    done = bench.mslaunch("report", "-o", "many.html")
    assert done.returncode == 0, done.stderr
    assert (bench.folder / "many.html").stat().st_size < 3_000_000
    document = json.loads(bench.mslaunch("report", "--json").stdout)
    assert 700 in {curve.get("rank") for curve in document["curves"]}
    assert [log["rank"] for log in document["logs"]] == list(range(ranks))
    assert len(document["logs"][700]["lines"]) > len(document["logs"][0]["lines"]) > 5
