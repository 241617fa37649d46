"""Tags, notes and the filters of `mslaunch ps`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from mslaunch.cli.parsing import common, options
from mslaunch.run import disk_usage, labels, summaries
from mslaunch.run.disk_usage import measure
from mslaunch.run.find import list_runs
from mslaunch.run.liveness import current
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RunRecord
from mslaunch.run.summaries import RunSummary, read_summaries
from mslaunch.settings.launch import SETTINGS
from tests.beds.past_runs import make_run
from tests.conftest import MSLAUNCH, Bench


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_a_run_is_started_with_tags_and_found_by_them(bench: Bench) -> None:
    """--tag, several times, and launch.tags in the YAML."""
    bench.write("train.py", "print(1)\n")
    bench.write("cfg.yaml", "launch:\n  tags: baseline\n")
    bench.mslaunch("train", "-n", "1", "--run-id", "one", "--tag", "a", "--tag", "lr=0.1")
    bench.mslaunch("train", "-n", "1", "--run-id", "two", "--config", "cfg.yaml")
    bench.mslaunch("train", "-n", "1", "--run-id", "three")
    assert names(bench.mslaunch("ps", "--tag", "a").stdout) == ["one"]
    assert names(bench.mslaunch("ps", "--tag", "baseline").stdout) == ["two"]
    assert names(bench.mslaunch("ps", "--tag", "a", "--tag", "baseline").stdout) == []
    assert "a,lr=0.1" in bench.mslaunch("ps").stdout
    assert "tags: a, lr=0.1" in bench.mslaunch("status", "one").stdout
    assert bench.plan()["tags"] == []


def test_notes_and_tags_are_added_later_and_shown(bench: Bench) -> None:
    """In `note`, `ps` and `status`; as JSON too."""
    make_run(bench.runs, "one")
    assert bench.mslaunch("note", "one").stdout == "one has no notes and no tags.\n"
    bench.mslaunch("note", "one", "first look")
    done = bench.mslaunch("note", "one", "with warm-up, much better", "--tag", "keep", "--tag", "x")
    assert done.stdout.splitlines()[0] == "tags: keep, x"
    bench.mslaunch("note", "one", "--remove-tag", "x")
    again = bench.mslaunch("note", "one", "--remove-tag", "x")
    assert (again.returncode, again.stderr) == (2, "mslaunch: the run has no tag 'x' to remove; it has keep.\n")
    assert json.loads(bench.mslaunch("note", "one", "--json").stdout)["tags"] == ["keep"]
    listed = bench.mslaunch("ps").stdout
    assert "TAGS" in listed
    assert "with warm-up, much better" in listed
    assert "first look" in bench.mslaunch("status", "one").stdout
    (told,) = json.loads(bench.mslaunch("ps", "--json").stdout)
    assert [note["text"] for note in told["labels"]["notes"]] == ["first look", "with warm-up, much better"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("note", "one", ""), "a note has 1 to"),
        (("note", "one", "--tag", "two words"), "'two words' is no tag"),
        (("ps", "--state", "fialed"), "did you mean 'failed'?"),
        (("ps", "--since", "yesterday"), "--since 'yesterday'"),
        (("train", "-n", "1", "--tag", "-x"), "a tag is up to 64"),
    ],
)
def test_what_is_no_tag_note_state_or_time_is_refused(bench: Bench, args: tuple[str, ...], said: str) -> None:
    """In one sentence, with exit code 2."""
    make_run(bench.runs, "one")
    bench.write("train.py", "")
    done = bench.mslaunch(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_are_listed_by_state_and_age(bench: Bench) -> None:
    """Filters look at all runs, not at the last twenty only."""
    make_run(bench.runs, "old", "failed", days=50)
    for number in range(30):
        make_run(bench.runs, f"run{number:02}", days=30 - number)
    make_run(bench.runs, "bad", "failed", days=0.1)
    assert names(bench.mslaunch("ps", "--state", "failed").stdout) == ["old", "bad"]
    assert names(bench.mslaunch("ps", "--state", "failed", "--since", "1d").stdout) == ["bad"]
    assert names(bench.mslaunch("ps", "--since", "50h").stdout) == ["run28", "run29", "bad"]
    assert "No run fits." in bench.mslaunch("ps", "--state", "queued").stderr


def test_labels_survive_many_who_write_at_once(tmp_path: Path) -> None:
    """Each waits for the other."""
    run = make_run(tmp_path, "one")
    code = "import mslaunch, sys; mslaunch.find_run(sys.argv[1]).label(sys.argv[2])"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(run.path), f"note {n}"]) for n in range(6)]
    assert [one.wait(120) for one in writers] == [0] * 6
    assert {note.text for note in labels.read(run).notes} == {f"note {n}" for n in range(6)}


def test_labels_that_cannot_be_read_are_none_and_are_not_overwritten(bench: Bench) -> None:
    """A list goes on without them; whoever would add one is told."""
    run = make_run(bench.runs, "one")
    run.labels.write_text('{"tags": 5}')
    assert names(bench.mslaunch("ps").stdout) == ["one"]
    done = bench.mslaunch("note", "one", "text")
    assert done.returncode == 2
    assert "labels.json: not a record" in done.stderr
    assert run.labels.read_text() == '{"tags": 5}'


def test_the_size_of_a_run_is_measured(bench: Bench) -> None:
    """A link counts nothing of what it leads to, and a file with two names once."""
    run = make_run(bench.runs, "one")
    big = run.rank(0) / "big"
    big.write_bytes(b"x" * 1_000_000)
    (run.rank(1) / "again").hardlink_to(big)
    (run.rank(1) / "link").symlink_to(big)
    assert 1_000_000 < measure(run.path) < 1_100_000
    table = bench.mslaunch("ps", "--size").stdout
    assert "SIZE" in table
    assert "1.04 MB" in table or "1.03 MB" in table or "1.02 MB" in table
    (told,) = json.loads(bench.mslaunch("ps", "--size", "--json").stdout)
    assert told["bytes_now"] == measure(run.path)


def test_the_record_has_the_size_that_the_run_had_when_it_ended(bench: Bench) -> None:
    """So that a sum needs no look at a thousand folders."""
    bench.write("train.py", "open('big', 'wb').write(bytes(2_000_000))\n")
    bench.mslaunch("train", "-n", "1")
    assert bench.record()["bytes"] > 2_000_000


def some(tmp_path: Path, count: int = summaries.FEW + 5) -> list[RunFolder]:
    for number in range(count):
        make_run(tmp_path, f"run{number:02}", days=count - number)
    return list_runs(tmp_path)


def test_records_of_runs_that_are_over_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next list reads the summaries that were kept; a record that has changed is read anew."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = some(tmp_path / "runs")
    first = read_summaries(tmp_path / "runs", runs, runs)
    read: list[str] = []

    def noted(folder: RunFolder) -> RunRecord:
        read.append(folder.run_id)
        return current(folder)

    monkeypatch.setattr(summaries, "current", noted)
    assert read_summaries(tmp_path / "runs", runs, runs) == first
    assert read == []
    raw = json.loads(runs[3].record.read_text())
    runs[3].record.write_text(json.dumps({**raw, "state": "stopped"}))
    again = read_summaries(tmp_path / "runs", runs, runs)
    assert read == ["run03"]
    assert isinstance(again[3], RunSummary)
    assert again[3].state == "stopped"


def test_a_run_that_goes_on_is_looked_at_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may change is not kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    some(tmp_path / "runs")
    going = make_run(tmp_path / "runs", "zz", "running")
    runs = list_runs(tmp_path / "runs")
    states = []
    for pid in (None, 4_000_000):
        if pid:
            raw = json.loads(going.record.read_text())
            raw["launcher"]["pid"] = pid
            going.record.write_text(json.dumps(raw))
        states += [one.state for one in read_summaries(tmp_path / "runs", [going], runs) if isinstance(one, RunSummary)]
    assert states == ["running", "lost"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "runs": {"runs/run00": [1]}}', '{"version": 9}', "\0"])
def test_kept_summaries_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """They are read anew then."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = some(tmp_path / "runs")
    first = read_summaries(tmp_path / "runs", runs, runs)
    (kept,) = (tmp_path / "state" / "mslaunch" / "summaries").iterdir()
    kept.write_text(text)
    assert read_summaries(tmp_path / "runs", runs, runs) == first


def test_ps_tells_of_runs_that_take_much_room(bench: Bench) -> None:
    """By the sizes in their records."""
    make_run(bench.runs, "one", bytes=6_000_000_000)
    assert "take" not in bench.mslaunch("ps").stderr
    make_run(bench.runs, "two", bytes=6_000_000_000)
    assert "take 12 GB; `mslaunch prune" in bench.mslaunch("ps").stderr


def test_prune_tells_of_runs_that_still_take_much_room(bench: Bench) -> None:
    """By the sizes in the records of the runs that stay."""
    for name, days in (("old", 50), ("new", 1), ("newer", 0.5)):
        make_run(bench.runs, name, days=days, bytes=6_000_000_000)
    assert "take 12 GB; `mslaunch prune" in bench.mslaunch("prune", "--older-than", "30d").stderr
    assert "take" not in bench.mslaunch("prune", "--keep", "1").stderr


def test_a_run_that_ends_reads_no_other_run(bench: Bench) -> None:
    """Records that would block whoever opens them do not hold it up, and it prints no note about disk use."""
    bench.write("train.py", "")
    make_run(bench.runs, "large", bytes=2 * disk_usage.MUCH)
    os.mkfifo(make_run(bench.runs, "blocked").record.with_name("run.json.new"))
    (bench.runs / "blocked" / "run.json.new").replace(bench.runs / "blocked" / "run.json")
    done = bench.mslaunch("train", "-n", "1", "--run-id", "a")
    assert done.returncode == 0
    assert "mslaunch prune" not in done.stdout
    assert bench.record("a")["notes"] == []


def test_a_disk_that_is_nearly_full_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    monkeypatch.setattr(disk_usage, "LITTLE", 1 << 62)
    monkeypatch.setattr(disk_usage, "LITTLE_SHARE", 1.1)
    (note,) = disk_usage.describe_use(tmp_path, total=0)
    assert "is nearly full" in note
    assert "mslaunch prune" in note


def test_the_option_that_names_the_folder_is_the_settings_own() -> None:
    """Verbs that look at runs declare it without loading the settings."""
    flag = options._FLAGS["runs_dir"]
    (declared,) = get_args(common.RunsDir)[1:]
    assert (declared.default, *declared.param_decls) == flag.names
    assert (declared.help, declared.metavar) == (SETTINGS["runs_dir"].description, flag.metavar)


def test_ps_loads_no_settings() -> None:
    """A list of runs is there at once: what a launch needs is not loaded."""
    code = "import sys; from mslaunch.cli import run; run(['ps']); print(*sys.modules)"
    done = subprocess.run([str(Path(MSLAUNCH).with_name("python")), "-c", code], capture_output=True, text=True)
    assert not {"mslaunch.settings.launch", "yaml", "jinja2", "numpy"} & set(done.stdout.split())
