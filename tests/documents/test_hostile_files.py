"""Files and answers that somebody else wrote end in a value or in one sentence, never in a traceback or a hang."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.sharding.sets import parse_step
from mslaunch.cli import run as mslaunch
from mslaunch.diagnose.case import read_error
from mslaunch.diagnose.logs.scan import scan
from mslaunch.diagnose.patterns.pattern import checked_pattern
from mslaunch.documents.row_table import parse_rows
from mslaunch.errors import ConfigError, MslaunchError, RecordUnreadable, RequestError
from mslaunch.hosts import Host, parse_hostfile, parse_hosts
from mslaunch.launcher.read import Request, read
from mslaunch.plan.combinations import parse_axis
from mslaunch.ranges import parse_ranges
from mslaunch.ranktable.generate import parse_hccn_conf
from mslaunch.ranktable.repair import repair
from mslaunch.ranktable.versions import read_table
from mslaunch.run import launchers, record, sweep_record
from mslaunch.run.events import RankJoined, follow_events
from mslaunch.run.paths import RunFolder, SweepFolder
from mslaunch.run.run import Run
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import JobConfig, parse_config
from mslaunch.transports.slurm import slurm_queue
from mslaunch.transports.ssh import channel
from mslaunch.ui.library import Library
from tests.conftest import ROOT, Bench
from tests.documents.test_documents import BOMB

SAMPLES = ROOT / "fuzz" / "samples"
DEEP = "[" * 100_000
DIGITS = "9" * 5000
Change = Callable[[dict[str, Any]], object]


def sample(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((SAMPLES / name).read_text())
    return raw


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """A run that somebody has copied here."""
    folder = RunFolder(tmp_path / "r1")
    folder.path.mkdir()
    folder.record.write_text(json.dumps(sample("run.json/failed.json")))
    folder.plan.write_bytes((ROOT / "tests" / "golden" / "plan_dynamic.json").read_bytes())
    return folder


@pytest.mark.parametrize(("text", "line"), [(BOMB, 5), (f"a: 1\nb: {DEEP}", 2)])
def test_bombs_in_yaml_are_refused_with_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    """The job's config, the cluster of a rank table, and patterns."""
    with pytest.raises(ConfigError, match=rf"^cfg.yaml:{line}: not valid YAML: "):
        parse_config(text, "cfg.yaml")
    _, problems = parse_rows(text, "mine.yaml", "patterns", checked_pattern)
    assert problems[0].startswith(f"mine.yaml:{line}: not valid YAML")
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    assert mslaunch(["rank-table", "generate", "--cluster", str(path)]) == 2


@pytest.mark.parametrize("name", ["config", "hostfile", "rank_table"])
def test_files_that_are_too_large_are_not_read(name: str) -> None:
    """Not even where they have no end."""
    request = Request(config="/dev/zero") if name == "config" else Request(flags={name: "/dev/zero"})
    with pytest.raises(MslaunchError, match=r"/dev/zero.*(larger than 10 MB|no such rank table)"):
        read(request)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(started=5),
        lambda raw: raw.update(started="yesterday"),
        lambda raw: raw.update(started="2026-01-01T10:00:00"),
        lambda raw: raw.update(state={}),
        lambda raw: raw.update(transport=[]),
        lambda raw: raw.update(transport="\0"),
        lambda raw: raw.update(transport="../../x"),
        lambda raw: raw.update(schema_version="²"),
        lambda raw: raw.update(ranks=[1]),
        lambda raw: raw["ranks"][0].update(host=None),
        lambda raw: raw["launcher"].update(pid=-1),
        lambda raw: raw["verdict"].update(summary=1),
        lambda raw: raw["verdict"].update(victims=[{}]),
        lambda raw: raw["attempts"][0].update(resume=[]),
    ],
)
def test_a_record_of_other_types_is_refused(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str], change: Change
) -> None:
    """`mslaunch status` says so in one line; `mslaunch ps` shows the others."""
    raw = sample("run.json/failed.json")
    change(raw)
    run_folder.record.write_text(json.dumps(raw))
    assert mslaunch(["status", str(run_folder.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert mslaunch(["ps", "--runs-dir", str(run_folder.path.parent)]) == 0
    assert "run.json" in capsys.readouterr().err


@pytest.mark.parametrize("text", [DEEP, "[]", "1", '{"run_id": 1}', DIGITS, "\udcff"])
def test_files_of_a_run_that_hold_something_else_are_refused(run_folder: RunFolder, text: str) -> None:
    """run.json, plan.json and sweep.json alike."""
    data = text.encode("utf-8", "surrogateescape")
    path = SweepFolder(run_folder.path)
    for file, read_file in (
        (run_folder.record, lambda: record.read(run_folder)),
        (run_folder.plan, lambda: Run(run_folder).plan),
        (path.record, lambda: sweep_record.read(path)),
    ):
        file.write_bytes(data)
        with pytest.raises(RecordUnreadable, match=file.name):
            read_file()


def test_a_missing_plan_is_told_in_one_sentence(run_folder: RunFolder) -> None:
    """A folder that was copied in part."""
    run_folder.plan.unlink()
    with pytest.raises(RecordUnreadable, match=r"plan\.json: not a record"):
        _ = Run(run_folder).plan


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["runs"][0].update(run_id="../other"),
        lambda raw: raw["runs"][0].update(assignments={"lr": 1}),
        lambda raw: raw.update(varied=["seed"]),
        lambda raw: raw.update(runs=[]),
    ],
)
def test_a_sweep_of_other_types_is_refused(tmp_path: Path, change: Change) -> None:
    """Its runs lie in its own folder, and each has every value."""
    raw = sample("sweep.json/two_keys.json")
    change(raw)
    folder = SweepFolder(tmp_path)
    folder.record.write_text(json.dumps(raw))
    with pytest.raises(RecordUnreadable, match=r"sweep\.json"):
        sweep_record.read(folder)


def test_a_pid_is_signalled_only_where_it_is_the_launchers() -> None:
    """A record may name any process; without the time of its start none is meant."""
    me = launchers.this_process()
    for claimed in (replace(me, start_time=None), replace(me, start_time=1), replace(me, boot_id="other")):
        launchers.ask(SweepFolder(Path()), claimed, "stop")  # SIGTERM would end this test
    assert not launchers.is_alive(replace(me, pid=launchers.LARGEST_PID, start_time=None))


def test_lines_of_events_that_are_none_are_left_out(run_folder: RunFolder) -> None:
    """Nested ones, and those with values of other types."""
    good = {"ev": "joined", "rank": 0, "host": "n1", "time": 1.0}
    lines = [DEEP, json.dumps({**good, "rank": "x"}), json.dumps({**good, "time": 1e400}), DIGITS, json.dumps(good)]
    run_folder.events.write_text("".join(f"{line}\n" for line in lines))
    assert list(follow_events(run_folder, lambda: True)) == [RankJoined(0, "n1", 1.0)]


@pytest.mark.parametrize("text", [DEEP, "[1]", '{"message": 1}', '{"traceback": {}}', "\udcff"])
def test_an_error_file_of_other_types_tells_nothing(tmp_path: Path, text: str) -> None:
    """Everything that a rank starts can write it."""
    (tmp_path / "error.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    (tmp_path / "log.txt").write_text("Traceback (most recent call last):\nKeyError: 1\n")
    assert read_error(tmp_path) is None
    assert mslaunch(["diagnose", str(tmp_path)]) == 0


def test_a_blank_traceback_is_shown(tmp_path: Path) -> None:
    """An exception may say nothing."""
    (tmp_path / "error.json").write_text('{"message": "x", "traceback": " "}')
    (tmp_path / "log.txt").write_text("Traceback (most recent call last):\nKeyError: 1\n")
    assert mslaunch(["diagnose", str(tmp_path)]) == 0


@pytest.mark.parametrize("log", ["/dev/zero", "pipe", "\0", "x" * 5000], ids=["device", "pipe", "NUL", "long"])
def test_a_verdict_may_name_anything_as_its_log(run_folder: RunFolder, log: str) -> None:
    """A device or a pipe is not read: it may have no end, or nobody at its other one."""
    os.mkfifo(run_folder.path / "pipe")
    raw = sample("run.json/failed.json")
    raw["verdict"]["log"] = str(run_folder.path / log) if log == "pipe" else log
    run_folder.record.write_text(json.dumps(raw))
    assert mslaunch(["status", str(run_folder.path)]) == 0


def test_names_that_are_no_text_are_printed(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a script's name that are not UTF-8 come back from the record as lone surrogates."""
    with Path(os.devnull).open("w", encoding="utf-8", errors="strict") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        raw = {**sample("run.json/failed.json"), "script": "train\udcff.py"}
        run_folder.record.write_text(json.dumps(raw))
        assert mslaunch(["status", str(run_folder.path)]) == 0


@pytest.mark.parametrize(
    "line",
    [
        f"epoch: {DIGITS} step: 1, loss is 1",
        f"epoch: 1 step: {DIGITS}, loss is 1",
        f"per step time: {DIGITS} ms",
        f"Client connected end of file! Peer x ip: 1, port: {DIGITS}",
        "[ERROR] X(1):0001-01-01-00:00:00.000.000 x",
        "[ERROR] X(1):9999-12-31-23:59:59.999.999 x",
    ],
)
def test_numbers_in_logs_have_no_length_that_matters(line: str) -> None:
    """A line that cannot be a step, a port or a time is none."""
    found = scan([line])
    assert (found.last_step, found.facts) == ((0, 0), ())


def test_a_chain_of_many_exceptions_is_one() -> None:
    """However long it is."""
    link = ["Traceback (most recent call last):", "KeyError: 1", "", "During handling of the above exception, x", ""]
    (raised,) = scan([*(link * 5000), *link[:2]]).raised
    assert raised.summary == "KeyError: 1"


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: parse_hosts(f"n1:{DIGITS}"), "a count of devices is 1 to 65536"),
        (lambda: parse_hosts(",".join(f"n{i}:60000" for i in range(4000))), "more than 65536 devices in all"),
        (lambda: parse_hosts("n1," + "n2, " * 50_000), "n2 is named twice"),
        (lambda: parse_hosts("n\x1b[1m:8"), "cannot read"),
        (lambda: parse_hosts("n\0:8"), "cannot read"),
        (lambda: parse_hostfile("".join(f"n{i} slots=99999\n" for i in range(9)), "hf"), "^hf:1: the hosts have more"),
        (lambda: parse_ranges("0-60000,0-5000", "--devices"), "0-5000 is named twice"),
        (lambda: parse_ranges("0-999999", "--devices"), "more than 65536 numbers"),
        (lambda: parse_axis(f"a=1..{DIGITS}"), "18 digits or more"),
        (lambda: parse_axis(f"a=1..{10**30}"), "18 digits or more"),
        (lambda: parse_step(f"1_{DIGITS}"), "write EPOCH_STEP"),
    ],
)
def test_numbers_and_names_of_hosts_are_bounded(read: Callable[[], object], words: str) -> None:
    """Neither digits nor ranges can exhaust the reader."""
    with pytest.raises(RequestError, match=words):
        read()


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"timeout": float("inf")}, "timeout"),
        ({"grace": float("nan")}, "grace"),
        ({"setup": "a\0b"}, "setup: text without a NUL"),
        ({"config_arg": "\0"}, "config_arg: text without a NUL"),
        ({"script": "x" * 256}, "script: a path is"),
        ({"runs_dir": "x/" * 3000}, "runs_dir: a path is"),
        ({"hosts": [{"address": "n1", "env": {"A=": "b"}}]}, "is not the name of a variable"),
        ({"hosts": [{"address": "n\0"}]}, "text without a NUL"),
    ],
)
def test_settings_that_no_process_can_be_started_with_are_refused(launch: dict[str, Any], words: str) -> None:
    """Here, where the key is known, and not on a host."""
    with pytest.raises(ConfigError, match=words):
        resolve({}, {}, JobConfig("cfg.yaml", {}, launch))


def test_the_number_of_ranks_is_bounded() -> None:
    """A plan of a billion ranks would take all memory."""
    with pytest.raises(ConfigError, match=r"cfg.yaml:1: device_num: .* 65536"):
        parse_config("device_num: 1000000000\n", "cfg.yaml")


def test_a_rank_table_with_values_of_other_types_is_refused() -> None:
    """Addresses are texts; a repair leaves alone what it does not understand."""
    table = json.loads((ROOT / "rank_tables" / "v2.0_1x8.json").read_text())
    table["rank_list"][0]["level_list"][0]["rank_addr_list"][0]["addr"] = 1.5
    with pytest.raises(RequestError, match="addr must be a text"):
        read_table(json.dumps(table), "t.json")
    assert repair({"server_list": [{"device": 5}]})[0]["server_list"] == [{"device": 5}]


def test_what_a_host_tells_of_its_devices_is_bounded() -> None:
    """/etc/hccn.conf may hold anything."""
    assert parse_hccn_conf(f"address_{DIGITS}=1.2.3.4\naddress_1=1.2.3.5\n") == {1: "1.2.3.5"}


@pytest.mark.parametrize("answer", [b"hostname \xff\xfe\n", b"hostname a b\n", b"hostname \0\n", b"hostname \n", b""])
def test_an_address_that_is_none_is_not_used(answer: bytes) -> None:
    """Where `ssh -G` answers something else, the host's name stands."""
    assert channel.address_of(Host("n1", "n1", ()), answer) == "n1"


@pytest.mark.parametrize("said", ["@" * 60_000, "a" * 60_000, ("@" * 290 + "\n") * 200, "x\x1b[31m\x0b\x85y"])
def test_what_a_host_writes_does_not_hold_up_the_launcher(said: str) -> None:
    """The sentence is one printable line, and is found in a moment whatever stands there."""
    assert channel.explain(Host("n1", "n1", ()), said, "root").isprintable()


@pytest.mark.parametrize("name", ["$(id)", "`id`", "a;id", "a'b", "-oProxyCommand=id", "~", "n1"])
def test_a_command_in_an_advice_does_nothing_else_when_it_is_pasted(name: str) -> None:
    """The words that bash hands to ssh are the host's name, or what a host called itself."""
    host = Host(name, name, ())
    changed = channel.explain(host, f"Host key for {name} has changed and you have requested strict checking.", "me")
    refused = channel.explain(host, "ssh: connect to host x port 22: Connection refused", "me")
    for text, own in ((changed, ["-R"]), (refused, ["--"] if name.startswith("-") else [])):
        command = "ssh" + text.partition("`ssh")[2].rpartition("`")[0]
        script = f'ssh() {{ printf \'%s\\n\' "$@"; }}; ssh-keygen() {{ ssh "$@"; }}; {command}'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert (done.stdout.splitlines(), done.stderr) == ([*own, name], "")


@pytest.mark.parametrize("ended", ["2026-99-99T00:00:00", "1", "N/A", ""])
def test_a_time_that_slurm_does_not_know_is_none(ended: str) -> None:
    """Its commands write words there too."""
    assert slurm_queue._job_state("COMPLETED", "", ended).ended is None


@pytest.mark.parametrize("verb", ["status", "stop", "outputs"])
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(bench: Bench, verb: str) -> None:
    """It is refused like any other thing that is no record."""
    bench.write("train.py", "")
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    for name in ("run.json", "plan.json"):
        (bench.latest / name).unlink()
        os.mkfifo(bench.latest / name)
        done = bench.mslaunch(verb, str(bench.latest))
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


def test_a_pipe_in_the_place_of_metrics_or_events_is_not_waited_for(bench: Bench) -> None:
    """It is as if there were none: for `status`, `export`, `report` and the page."""
    bench.write("train.py", "print('step 1 loss 0.5')\n")
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    for name in ("metrics.jsonl", "events.jsonl"):
        (bench.latest / name).unlink()
        os.mkfifo(bench.latest / name)
    assert bench.mslaunch("status").returncode == 0
    assert bench.mslaunch("report", "-o", "r.html").returncode == 0
    assert "Traceback" not in bench.mslaunch("export", "--csv", "-").stderr
    assert [run["name"] for run in Library(str(bench.runs)).summaries()] == [bench.latest.name]
