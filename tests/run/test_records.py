"""docs/records.md, the types and the files of real runs say the same."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent.main import Agent
from mslaunch.diagnose.verdict import Step, Tie, Verdict
from mslaunch.hosts import Host
from mslaunch.launcher.attempt import notices
from mslaunch.launcher.attempt.run_state import HANDLERS
from mslaunch.plan.model import File, Plan, Process, Restarts, TimeLimits, from_json
from mslaunch.run import record
from mslaunch.run.labels import Labels
from mslaunch.run.launchers import Launcher
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import AttemptSummary, OutputRecord, RankRecord, RunRecord, WarningRecord
from mslaunch.shared import messages
from tests.beds.past_runs import make_running
from tests.conftest import ROOT, Bench

PAGE = (ROOT / "docs" / "records.md").read_text()
TYPES: dict[str, type] = {
    "run.json": RunRecord,
    "run.json: outputs": OutputRecord,
    "run.json: warnings": WarningRecord,
    "labels.json": Labels,
    "run.json: ranks": RankRecord,
    "run.json: launcher": Launcher,
    "run.json: attempts": AttemptSummary,
    "run.json: verdict": Verdict,
    "run.json: chain": Step,
    "run.json: ties": Tie,
    "plan.json": Plan,
    "plan.json: hosts": Host,
    "plan.json: files": File,
    "plan.json: processes": Process,
    "plan.json: limits": TimeLimits,
    "plan.json: restarts": Restarts,
}
WHOLE_FILES = ("run.json", "plan.json", "labels.json")
RECORDED = {name: kind for name, kind in messages.AGENT_EVENTS.items() if name not in messages.NOT_RECORDED}
EVENTS: dict[str, type] = {**RECORDED, **notices.RECORDED}
NEWER = "2.0"


def keys_of(kind: type) -> set[str]:
    if issubclass(kind, notices.LauncherNotice):
        return {"ev", *kind.__slots__}
    return {f.name for f in fields(kind)} if is_dataclass(kind) else set(kind.__annotations__)


def fields_of(heading: str) -> set[str]:
    if heading not in TYPES:  # a file that ranks write: without a type, so that it is compared with its page alone
        return {cells[0].strip("`") for cells in rows(heading)}
    return keys_of(TYPES[heading]) | ({"schema_version"} if heading in WHOLE_FILES else set())


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its own two lines."""
    section = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", cell))


@pytest.mark.parametrize("heading", TYPES)
def test_every_field_is_documented_and_no_other(heading: str) -> None:
    """A field that is added, renamed or removed needs its row."""
    found = [cells[0].strip("`") for cells in rows(heading)]
    assert sorted(found) == sorted(fields_of(heading))
    assert all(cells[1] for cells in rows(heading))


@pytest.mark.parametrize(
    ("heading", "events", "common"),
    [
        ("Events of agents", RECORDED, {"ev", "host", "time"}),
        ("Events of the launcher", notices.RECORDED, {"ev"}),
    ],
)
def test_every_event_is_documented_with_its_fields(heading: str, events: Mapping[str, type], common: set[str]) -> None:
    """Those that events.jsonl may hold, and no other."""
    found = {cells[0].strip("`"): names(cells[1]) for cells in rows(heading)}
    assert found == {name: keys_of(kind) - common for name, kind in events.items()}
    assert all(cells[2] for cells in rows(heading))


def test_every_field_of_an_event_is_explained() -> None:
    """Once, since the same name means the same in all of them."""
    explained = [cells[0].strip("`") for cells in rows("Fields of events")]
    assert sorted(explained) == sorted({key for kind in EVENTS.values() for key in keys_of(kind)})


def check(raw: Mapping[str, Any], heading: str) -> None:
    """Compare an object of a real file with its type: no key is missing, none is unknown."""
    assert set(raw) == fields_of(heading), heading


def check_verdict(raw: Mapping[str, Any] | None) -> None:
    if raw is not None:
        check(raw, "run.json: verdict")
        for step in raw["chain"]:
            check(step, "run.json: chain")


def check_run(folder: Path) -> None:
    """Compare run.json, plan.json and events.jsonl with the types."""
    run = json.loads((folder / "run.json").read_text())
    check(run, "run.json")
    check(run["launcher"], "run.json: launcher")
    check_verdict(run["verdict"])
    for rank in run["ranks"]:
        check(rank, "run.json: ranks")
    for output in run["outputs"]:
        check(output, "run.json: outputs")
    for attempt in run["attempts"]:
        check(attempt, "run.json: attempts")
        check_verdict(attempt["verdict"])
    for path in folder.glob("plan*.json"):
        check_plan(json.loads(path.read_text()))
    for number, line in enumerate((folder / "events.jsonl").read_text().splitlines()):
        check_event(json.loads(line), number)


def check_plan(plan: Mapping[str, Any]) -> None:
    check(plan, "plan.json")
    for part in ("hosts", "files", "processes"):
        for item in plan[part]:
            check(item, f"plan.json: {part}")
    check(plan["limits"], "plan.json: limits")
    check(plan["restarts"], "plan.json: restarts")


def check_event(event: Mapping[str, Any], number: int) -> None:
    kind: Any = EVENTS[event["ev"]]
    assert (event["ev"] == "schema") == (number == 0)
    required = getattr(kind, "__required_keys__", keys_of(kind))
    assert required <= set(event) <= keys_of(kind), event


def test_the_files_of_a_failed_run_are_as_documented(bench: Bench) -> None:
    """Its verdict has all fields, those with nothing to tell included."""
    bench.write(
        "train.py", "import os, time\nif os.environ['RANK_ID'] == '1': raise ValueError('x')\ntime.sleep(600)\n"
    )
    assert bench.mslaunch("train", "-n", "2").returncode == 1
    check_run(bench.latest)
    assert bench.record()["verdict"]["pattern"] is None
    errors = list(bench.latest.glob("rank_*/error.json"))
    assert errors
    for path in errors:
        check(json.loads(path.read_text()), "error.json")


def test_the_files_of_a_restarted_run_are_as_documented(bench: Bench) -> None:
    """Each attempt has its plan, its verdict and its end; a script's ranks have their exit.json."""
    bench.write("train.py", "import os\nraise SystemExit(0 if os.environ['MSLAUNCH_ATTEMPT'] == '1' else 5)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  max_restarts: 1\n  config_arg: null\n  method: rank-table\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == 0, done.stdout
    check_run(bench.latest)
    assert [attempt["verdict"]["pattern"] for attempt in bench.record()["attempts"]] == [None]
    for name in ("exit.json", "exit.0.json"):
        check(json.loads((bench.latest / "rank_0" / name).read_text()), "exit.json")


def set_version(folder: Path, version: str, **more: object) -> None:
    for name in ("run.json", "plan.json"):
        raw = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**raw, "schema_version": version, **more}))


def test_a_run_of_a_newer_major_version_is_refused(bench: Bench) -> None:
    """In one sentence, by every command that would read it; `ps` names it and lists the others."""
    bench.write("train.py", "print('hello')\n")
    for name in ("old", "new"):
        assert bench.mslaunch("train", "-n", "1", "--run-id", name).returncode == 0
    set_version(bench.runs / "new", NEWER)
    sentence = (
        rf"mslaunch: .*/new/(run|plan)\.json: written by a newer mslaunch \(schema version {NEWER}, .*\)\. .*\.\n"
    )
    for verb in ("status", "logs", "stop", "collect", "diagnose"):
        done = bench.mslaunch(verb, "new")
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert re.fullmatch(sentence, done.stderr), done.stderr
    done = bench.mslaunch("ps")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["RUN", "old"]
    assert re.fullmatch(sentence, done.stderr), done.stderr


def test_what_a_later_minor_version_adds_is_ignored(bench: Bench) -> None:
    """The second number promises no more than further fields."""
    bench.write("train.py", "raise SystemExit(3)\n")
    bench.mslaunch("train", "-n", "1")
    run, plan = record.read(RunFolder(bench.latest)), from_json((bench.latest / "plan.json").read_text())
    set_version(bench.latest, "1.99", colour="blue")
    raw = bench.record()
    for part in (raw["ranks"][0], raw["launcher"], raw["verdict"]):
        part["colour"] = "blue"
    (bench.latest / "run.json").write_text(json.dumps(raw))
    assert record.read(RunFolder(bench.latest)) == run
    assert from_json((bench.latest / "plan.json").read_text()) == plan


def test_a_record_from_before_groups_is_read_as_one_group(tmp_path: Path) -> None:
    """Its ranks and attempts belong to the group without a name."""
    plan = from_json((ROOT / "tests" / "golden" / "plan_dynamic.json").read_text())
    raw = replace(record.queued(plan, 0.0), attempts=(record.AttemptSummary(0, None, 1, None, None),)).to_dict()
    for part in (*raw["ranks"], *raw["attempts"]):
        del part["group"]
    older = record.from_value(json.loads(json.dumps({**raw, "schema_version": "1.4"})))
    assert {rank.group for rank in older.ranks} == {""}
    assert older.attempt_of() == 1
    assert RunFolder(tmp_path).plan_of("") == RunFolder(tmp_path).plan


def test_the_file_of_a_sweep_is_as_documented(bench: Bench) -> None:
    """Every key of a real sweep.json has its row, and no row names what is not there."""
    bench.write("train.py", "")
    bench.write("cfg.yaml", "lr: 1\n")
    assert bench.mslaunch("sweep", "-n", "1", "-c", "cfg.yaml", "--set", "lr=1,2").returncode == 0
    path = bench.latest / "sweep.json"
    assert {cells[0].strip("`") for cells in rows("sweep.json")} == set(json.loads(path.read_text()))


def test_both_sides_know_the_same_messages() -> None:
    """Every order of the launcher has its handler in the agent, and handlers are for events that agents send."""
    sources = "".join(
        path.read_text() for name in ("launcher", "transports") for path in (ROOT / "mslaunch" / name).rglob("*.py")
    )
    sent = set(re.findall(r'(?:"do": |Order\()"([\w-]+)"', sources))
    assert {name[3:].replace("_", "-") for name in vars(Agent) if name.startswith("on_")} == sent
    assert set(HANDLERS) <= set(messages.AGENT_EVENTS)


def test_how_long_a_run_takes_does_not_follow_the_wall_clock(tmp_path: Path) -> None:
    """Neither when it has ended, by what its launcher measured, nor while it runs, by the machine's own clock."""
    running = record.read(make_running(tmp_path))
    assert running.launcher
    began = time.clock_gettime(time.CLOCK_BOOTTIME) - 40.0
    running = replace(running, launcher=replace(running.launcher, began=began))
    for jump in (-400_000_000, 400_000_000):
        wall = datetime.fromisoformat(running.started) + timedelta(seconds=jump)
        assert 40.0 <= running.seconds_taken(wall) < 100.0
        ended = replace(running, state="succeeded", ended=wall.isoformat(), seconds=8.0)
        assert ended.seconds_taken(wall) == 8.0
