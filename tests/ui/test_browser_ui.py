"""`mslaunch ui` in a real browser, with real runs: list, live curves and logs, stacks, stop, comparison."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mslaunch.metrics.rows import Row, Source
from mslaunch.run.metrics_file import MetricsWriter
from tests.beds.browser_bed import Visit, chromium, visit
from tests.beds.run_bed import newest, tell
from tests.beds.ui_bed import Ui, shared_bench, start_ui
from tests.conftest import Bench, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SECONDS = 60_000  # of the browser's waits, in milliseconds
LIVE = """import os, time
for number in range(100_000):
    print(f"rank {os.environ['RANK_ID']} line {number} <b>bold</b>", flush=True)
    while not os.path.exists(os.path.join(os.environ["MSLAUNCH_SUBMIT_DIR"], f"go.{number // 10}")):
        time.sleep(0.02)
"""
PRINTING = """import time
for step in (1, 2, 3):
    print(f"epoch: 1 step: {step}, loss is {0.5 ** step}", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A folder with runs that have ended, of which two are alike but for a value and a line of code."""
    with shared_bench(tmp_path_factory.mktemp("ui")) as made:
        for name, rate, word in (("small", "0.1", "one"), ("large", "0.2", "two")):
            made.write("train.py", f"print({word!r})\n")
            made.write("cfg.yaml", f"lr: {rate}\nseed: 1\napi_token: hush-{word}\n")
            made.mslaunch("train", "--workers", "2", "--config", "cfg.yaml", "--run-id", name)
            tell(newest(made.runs), ranks=2, steps=range(100 if name == "small" else 50))
        made.mslaunch("note", "small", "with warm-up", "--tag", "baseline")
        made.write("train.py", "raise ValueError('<i>wrong</i>')\n")
        made.mslaunch("train", "--run-id", "wrong")
        yield made


@pytest.fixture(scope="module")
def ui(shown: Bench) -> Ui:
    return start_ui(shown, "--allow-stop")


@pytest.fixture
def page(browser: Browser, ui: Ui) -> Iterator[Visit]:
    """The list of runs; at the end nothing may have been asked of any other machine."""
    with visit(browser) as found:
        found.page.set_default_timeout(SECONDS)
        found.page.goto(ui.url)
        yield found
        assert [url for url in found.asked if not url.startswith((ui.origin, "data:"))] == []
        assert "token" not in found.page.url


@pytest.fixture
def live(shown: Bench) -> Iterator[str]:
    """A run that goes on; its lines come as files allow them."""
    name = f"live-{time.monotonic_ns()}"
    shown.write("live.py", LIVE)
    process = shown.start("train", "--workers", "2", "--tail", "none", "--run-id", name, "live.py")
    wait_for((shown.runs / name / "rank_1" / "log.txt").exists, "the ranks to start")
    yield name
    process.terminate()
    process.wait(timeout=60)
    for path in shown.folder.glob("go.*"):
        path.unlink()


def names(page: Visit) -> list[str]:
    return page.page.locator("#runs tbody a").all_inner_texts()


def test_runs_are_listed_and_searched(page: Visit) -> None:
    """The newest first, by name, by state and by why they failed."""
    page.page.get_by_role("link", name="small").wait_for()
    assert [name for name in names(page) if not name.startswith("live")] == ["wrong", "large", "small"]
    search = page.page.get_by_label("Search", exact=True)
    search.fill("<i>wrong")
    assert names(page) == ["wrong"]
    search.fill("")
    page.page.get_by_label("State").select_option("succeeded")
    assert names(page) == ["large", "small"]


@pytest.mark.parametrize("words", ["baseline", "warm-up"])
def test_runs_are_found_by_their_tags_and_notes(page: Visit, words: str) -> None:
    """Which the list shows."""
    page.page.get_by_role("link", name="small").wait_for()
    page.page.get_by_label("Search", exact=True).fill(words)
    assert names(page) == ["small"]
    assert "baseline\twith warm-up" in page.page.locator("#runs tbody tr").inner_text()


def test_the_page_of_a_run_shows_its_tags_and_notes(page: Visit) -> None:
    """Beside how it stands."""
    page.page.get_by_role("link", name="small").click()
    page.page.locator("#end").get_by_text("baseline", exact=True).wait_for()
    page.page.locator("#end li", has_text="with warm-up").wait_for()


def test_step_times_that_hardly_differ_have_one_colour(page: Visit) -> None:
    """Red is half as slow again as blue at least, though these differ by a tenth."""
    page.page.get_by_role("link", name="small").click()
    page.page.locator("#heat canvas").wait_for()
    scale = page.page.locator("#heat p.quiet", has_text="(red)").inner_text()
    low, high = re.findall(r"[\d.]+(?= s \()", scale)
    assert float(high) == pytest.approx(float(low) * 1.5, rel=1e-3)


def test_chosen_runs_are_laid_over_each_other(page: Visit) -> None:
    """Their curves in one chart, and where configuration and code differ."""
    page.page.get_by_label("Compare small").check()
    page.page.get_by_label("Compare large").check()
    page.page.get_by_role("button", name="Compare chosen runs").click()
    rows = page.table("loss")
    last = {name: step for name, step, _ in rows}
    assert last == {"small rank 0": "99", "large rank 0": "49"}
    differences = page.page.locator("#differences")
    config = differences.get_by_role("region", name="config").locator("tbody tr")
    assert config.all_inner_texts() == ["lr\t0.1\t0.2", "api_token\t***\t***"]
    differences.get_by_text("train.py: changed in large").click()
    diff = differences.locator("pre").last.inner_text()
    assert "-print('one')" in diff
    assert "+print('two')" in diff


def test_a_live_run_moves(page: Visit, shown: Bench, live: str) -> None:
    """Its curves, its last values and its log grow in the page by themselves."""
    writer = MetricsWriter(shown.runs / live / "metrics.jsonl")
    writer.write([Row(time.time(), Source(0, 0), {"step": 1, "loss": 0.5})])
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    page.page.locator("#curves canvas").first.wait_for()
    assert page.table("loss") == [["rank 0", "1", "0.5"]]
    writer.write([Row(time.time(), Source(0, 0), {"step": 2, "loss": 0.25})])
    writer.close()
    page.page.locator("#curves td", has_text=re.compile(r"^0\.25$")).wait_for()
    page.page.locator("#ranks td", has_text=re.compile(r"^0\.25$")).wait_for()
    shown.write("go.0", "")
    page.page.locator("#logs").get_by_text("rank 0 line 10 <b>bold</b>").wait_for()


def test_charts_of_a_live_run_have_one_order(page: Visit, shown: Bench, live: str) -> None:
    """A loss that comes late stands where a report has it: first."""
    writer = MetricsWriter(shown.runs / live / "metrics.jsonl")
    writer.write([Row(time.time(), Source(0, 0), {"step": 1, "accuracy": 0.5})])
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    page.page.locator("#curves figcaption", has_text="accuracy").wait_for()
    writer.write([Row(time.time(), Source(0, 0), {"step": 2, "accuracy": 0.5, "loss": 0.25})])
    writer.close()
    page.page.locator("#curves figcaption", has_text="loss").wait_for()
    assert page.page.locator("#curves figcaption").all_inner_texts()[:2] == ["loss", "accuracy"]


def test_the_attempts_of_a_log_are_counted_from_1(page: Visit, live: str) -> None:
    """The server counts from 0, people do not."""
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    page.page.locator("#logs").get_by_text("rank 0 line 0").wait_for()
    assert page.page.locator("#logs").get_by_label("Attempt").locator("option").all_inner_texts() == ["1"]


def test_what_a_script_prints_is_drawn_while_it_runs(page: Visit, shown: Bench) -> None:
    """LossMonitor's lines of a real job, of all ranks, without a change to the script."""
    shown.write("printing.py", PRINTING)
    process = shown.start("train", "--workers", "2", "--tail", "none", "--run-id", "printing", "printing.py")
    page.page.get_by_role("link", name="printing").click()
    page.page.locator("#curves figure", has_text="loss").wait_for()
    wait_for(lambda: len(page.table("loss")) == 6, "the losses of both ranks")
    assert page.table("loss")[:3] == [["rank 0", "1", "0.5"], ["rank 0", "2", "0.25"], ["rank 0", "3", "0.125"]]
    process.terminate()
    process.wait(timeout=60)


def test_logs_of_several_ranks_are_followed_together(page: Visit, shown: Bench, live: str) -> None:
    """Each line with its rank; the newest run's log as text."""
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    logs = page.page.locator("#logs")
    logs.get_by_text("rank 0 line 0").wait_for()
    logs.get_by_label("Ranks").fill("0-1")
    logs.get_by_label("Ranks").press("Enter")
    logs.get_by_text("rank 1 line 0").wait_for()
    shown.write("go.0", "")
    logs.get_by_text("rank 1 line 10 ").wait_for()
    logs.get_by_text("rank 0 line 10 ").wait_for()
    assert logs.locator("b").count() == 0


def test_a_log_is_searched_as_a_whole(page: Visit, shown: Bench, live: str) -> None:
    """A line that was found is shown where it stands."""
    for number in range(6):
        shown.write(f"go.{number}", "")
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    logs = page.page.locator("#logs")
    logs.get_by_text("line 60 ").wait_for()
    logs.get_by_label("Find", exact=True).fill("LINE 4")
    logs.get_by_role("button", name="Find in the whole log").click()
    logs.get_by_text("11 lines found").wait_for()
    logs.get_by_role("button", name="Show the log of rank 0").nth(3).click()
    logs.get_by_text("rank 0 line 50").wait_for()
    assert logs.locator(".line").first.inner_text() == "rank 0 line 42 <b>bold</b>"


def test_stacks_are_taken_on_demand(page: Visit, live: str) -> None:
    """Where all ranks stand, grouped."""
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    page.page.get_by_role("button", name="Take stacks").click()
    page.page.get_by_label("Stacks", exact=True).get_by_text("live.py").wait_for()


def test_a_run_is_stopped_after_a_question(page: Visit, shown: Bench, live: str) -> None:
    """The first answer is no; then it ends, and the page says so."""
    page.page.goto(f"{page.page.url.split('#')[0]}#run={live}")
    stop = page.page.get_by_role("button", name="Stop the run")
    stop.click()
    page.page.get_by_role("button", name="Let it run").click()
    assert shown.record(live)["state"] == "running"
    stop.click()
    page.page.get_by_role("button", name="Stop it").click()
    page.page.locator("header .badge", has_text="stopped").wait_for()
    assert shown.record(live)["state"] == "stopped"


def test_a_page_whose_server_has_gone_says_so(browser: Browser, shown: Bench) -> None:
    """In a sentence, and what to do."""
    other = start_ui(shown)
    with visit(browser) as found:
        found.page.goto(other.url)
        found.page.get_by_role("link", name="small").wait_for()
        other.process.terminate()
        other.process.wait(timeout=60)
        found.page.get_by_role("alert").get_by_text("The server does not answer.").wait_for(timeout=SECONDS)
        found.complaints.clear()  # the browser itself tells of every connection that was refused
