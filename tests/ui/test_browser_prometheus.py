"""`/metrics` of `mslaunch ui`, scraped by a real Prometheus."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from mslaunch.metrics.rows import Row, Source
from mslaunch.run.metrics_file import MetricsWriter
from tests.beds.ui_bed import Ui, start_ui
from tests.conftest import Bench, wait_for

CONFIG = """global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: mslaunch
    scrape_interval: 1s
    scrape_timeout: 1s
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture
def ui(bench: Bench) -> Ui:
    """A server with a run that goes on and has told numbers."""
    bench.write("train.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    bench.start("train", "--workers", "2", "--run-id", "long")
    wait_for(lambda: "begun" in bench.log(1), "the rank to begin")
    writer = MetricsWriter(bench.latest / "metrics.jsonl")
    now = time.time()
    writer.write([Row(now, Source(0, 1), {"step": 7, "loss": 9.0}), Row(now, Source(1, 1), {"loss": 0.25})])
    writer.write([Row(now, Source(0, None, "n0"), {"load": 3.5}), Row(now, Source(0, None, "n0", 2), {"power": 300})])
    writer.close()
    return start_ui(bench, "--token-file", "token")


def test_the_last_numbers_of_running_jobs_are_scraped(ui: Ui, bench: Bench, tmp_path: Path) -> None:
    """By a real Prometheus, with the token as its credentials: of ranks (the last attempt), hosts and devices."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus is installed (Debian: prometheus)")
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(token=bench.folder / "token", port=ui.port))
    words = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    process = subprocess.Popen(
        [program, *words, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        loss = wait_for(lambda: asked(port, 'mslaunch_rank_value{metric="loss"}'), "Prometheus to scrape", 120)
        assert loss[0]["metric"].items() >= {"run": "long", "rank": "1", "job": "mslaunch"}.items()
        assert loss[0]["value"][1] == "0.25"
        assert asked(port, 'mslaunch_host_value{host="n0"}')[0]["metric"]["metric"] == "load"
        assert asked(port, 'mslaunch_device_value{host="n0"}')[0]["value"][1] == "300"
        assert asked(port, 'mslaunch_runs{state="running"}')[0]["value"][1] == "1"
        assert asked(port, "up")[0]["value"][1] == "1"
    finally:
        process.terminate()
        process.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(port: int, query: str) -> Any:
    """What Prometheus answers to a query; nothing while it starts."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except (URLError, ConnectionError, KeyError):
        return None


def test_a_run_that_has_ended_leaves_its_state_alone(bench: Bench) -> None:
    """Its numbers are history, which a scrape is not for."""
    bench.write("train.py", "")
    bench.mslaunch("train", "--run-id", "done")
    MetricsWriter(bench.latest / "metrics.jsonl").write([Row(1.0, Source(0, 0), {"loss": 1.0})])
    text = start_ui(bench).get("/metrics").body.decode()
    assert 'mslaunch_runs{state="succeeded"} 1.0' in text
    assert "mslaunch_rank_value{" not in text
