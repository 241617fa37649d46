"""Reports of runs whose files others may have written: a report is made whatever is in them, and holds its document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fuzz.mutate import mutate_bytes, mutate_json, mutate_records
from fuzz.requests import ROOT
from fuzz.run import Border, samples
from mslaunch.run.paths import RunFolder
from mslaunch.run.run import Run
from mslaunch.ui import log_text
from mslaunch.ui.library import Library
from mslaunch.ui.page import make_report
from mslaunch.ui.server import compare

LARGEST = 3_000_000
_FILES = {
    "run.json": samples("run.json")[0],
    "plan.json": (ROOT / "tests" / "golden" / "plan_dynamic.json").read_bytes(),
    "events.jsonl": samples("events")[0],
    "metrics.jsonl": samples("metrics")[0],
    "rank_0/log.txt": samples("log")[0],
    "config.json": b'{"lr": 0.1, "model": {"layers": 12}}',
}
_CONFIG = b"""\
lr: 1e-4
model: &m {layers: 12, pad_token: "<pad>"}
ssh_private_key: |
  line one of it
  line two of it
tokens: [first-token, *m]
launch: {env: [{name: HF_TOKEN, value: third-token}]}
---
help: text
"""


def _open(name: str) -> Callable[[Path], Callable[[bytes], object]]:
    """Return what reads a run of which one file is hostile."""

    def opened(folder: Path) -> Callable[[bytes], object]:
        for path, data in _FILES.items():
            (folder / "r1" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "r1" / path).write_bytes(data)
        return lambda data: _read(folder, name, data)

    return opened


def _read(folder: Path, name: str, data: bytes) -> None:
    run = Run(RunFolder(folder / "r1"))
    (run.path / name).write_bytes(data)
    json.dumps(Library(str(folder)).summaries(), allow_nan=False).encode()
    log_text.search(run.path, run.folder.log(0), "a")
    page = make_report(run)
    held = page.partition('id="document">')[2].partition("</script>")[0]
    assert json.loads(held)["name"] == "r1"
    assert page.count("<script") == 2
    assert len(page.encode()) < LARGEST
    json.dumps(compare([run, run], {"HF_TOKEN": "known-1234"}), allow_nan=False).encode()


BORDERS = (
    Border("page-record", samples("run.json"), mutate_json, _open("run.json")),
    Border("page-plan", (_FILES["plan.json"],), mutate_json, _open("plan.json")),
    Border("page-events", samples("events"), mutate_records(b"\n"), _open("events.jsonl")),
    Border("page-metrics", samples("metrics"), mutate_records(b"\n"), _open("metrics.jsonl")),
    Border("page-log", samples("log"), mutate_bytes, _open("rank_0/log.txt")),
    Border("page-config-yaml", (_CONFIG,), mutate_bytes, _open("config.yaml")),
    Border("page-config", (_FILES["config.json"],), mutate_json, _open("config.json")),
)
