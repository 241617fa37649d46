"""What other packages add: methods, patterns, and plug-ins that cannot be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mslaunch.diagnose.patterns.pattern import checked_pattern, read_added
from mslaunch.documents.row_table import parse_rows
from tests.beds import netns_bed
from tests.conftest import ROOT, Bench

UNREACHABLE = "import os\nprint(os.nice(0), flush=True)\nraise OSError('Network is unreachable: 10.9.9.9')\n"
BROKEN = (
    "mslaunch: plug-in broken (mslaunch.patterns, from mslaunch-broken) cannot be loaded: "
    "RuntimeError: needs a driver that is not here\n"
)
ROW = (
    "- {id: site-quota, kind: cause, regex: 'quota of (\\w+)', summary: 'The quota of {1} is used up.', advice: Ask.}\n"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An mslaunch with two plug-ins: one that works, and one that raises when it is imported."""
    plugins = (ROOT / "tests" / "netns_plugin", ROOT / "tests" / "broken_plugin")
    return netns_bed.install(tmp_path_factory.mktemp("plugins"), *plugins)


@pytest.fixture
def plugged(bench: Bench, program: Path) -> Bench:
    bench.program = str(program)
    bench.write("train.py", UNREACHABLE.partition("raise")[0])
    return bench


def test_a_method_of_a_plug_in_starts_the_ranks(plugged: Bench) -> None:
    """--method names its entry point; the plan is the plug-in's, and so is what runs."""
    done = plugged.mslaunch("train", "-n", "2", "--method", "nice")
    assert done.returncode == 0, done.stderr
    assert [plugged.log(rank) for rank in range(2)] == ["10\n", "10\n"]
    assert (plugged.record()["method"], plugged.plan()["processes"][1]["argv"][0]) == ("nice", "nice")


def test_the_yaml_may_name_a_method_of_a_plug_in(plugged: Bench) -> None:
    """A dry run shows it with its source, as any setting."""
    plugged.write("cfg.yaml", "launch:\n  method: nice\n")
    done = plugged.mslaunch("train", "-c", "cfg.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "method nice" in done.stdout
    assert "cfg.yaml:2" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--method", "nise"), "--method: there is no method 'nise'; did you mean 'nice'?"),
        (("--transport", "netsn"), "--transport: there is no transport 'netsn'; did you mean 'netns'?"),
    ],
)
def test_a_misspelt_plug_in_is_a_wrong_request(plugged: Bench, args: tuple[str, ...], words: str) -> None:
    """The names of plug-ins are suggested as well; exit code 2, one line, nothing started."""
    done = plugged.mslaunch("train", "-n", "2", *args)
    assert (done.returncode, done.stderr) == (2, f"mslaunch: {words}\n")
    assert not plugged.runs.exists()


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("method", "broken", "RuntimeError: needs a driver that is not here"),
        ("method", "number", "TypeError: 3 is not a subclass of mslaunch.plan.methods.method.Method"),
        ("method", "renamed", "ValueError: its name is 'other', and the entry point calls it 'renamed'"),
        ("transport", "broken", "RuntimeError: needs a driver that is not here"),
        ("transport", "number", "TypeError: 3 is not a subclass of mslaunch.transports.base.Transport"),
        ("transport", "renamed", "ValueError: its name is 'other', and the entry point calls it 'renamed'"),
    ],
)
def test_asking_for_a_plug_in_that_cannot_be_loaded_is_a_wrong_request(
    plugged: Bench, kind: str, name: str, why: str
) -> None:
    """One line says which package it is from and why, exit code 2."""
    done = plugged.mslaunch("train", "--hosts", "n1:1", f"--{kind}", name)
    where = f"plug-in {name} (mslaunch.{kind}s, from mslaunch-broken)"
    assert (done.returncode, done.stderr) == (2, f"mslaunch: {where} cannot be loaded: {why}\n")


def test_a_program_that_a_transport_needs_and_does_not_find_is_named(plugged: Bench) -> None:
    """An error of the system while a host is opened is that host's trouble, exit code 3."""
    done = plugged.mslaunch("check", "--transport", "netns", "--hosts", "n1,n2", PATH="/nowhere")
    assert done.returncode == 3
    why = "the agent could not be started: [Errno 2] No such file or directory: 'ip'."
    assert done.stderr == f"mslaunch: n1: {why}\nmslaunch: n2: {why}\n"


def test_a_pattern_of_a_plug_in_explains_a_failure(plugged: Bench) -> None:
    """The verdict has its summary and advice; the broken plug-in beside it is named in one line, once."""
    plugged.write("train.py", UNREACHABLE)
    done = plugged.mslaunch("train", "-n", "2", "--tail", "none")
    assert done.returncode == 1
    assert done.stderr == BROKEN
    verdict = plugged.record()["verdict"]
    assert verdict["pattern"] == "netns-unreachable"
    assert verdict["advice"].startswith("The namespace has no route to 10.9.9.9. Add one with")


def test_a_broken_plug_in_does_not_touch_a_job_that_does_not_need_it(plugged: Bench) -> None:
    """A job that succeeds loads none, so there is nothing to be said."""
    done = plugged.mslaunch("train", "-n", "2")
    assert (done.returncode, done.stderr) == (0, "")


def test_diagnose_goes_on_without_a_broken_plug_in(plugged: Bench) -> None:
    """Logs of any launcher get the plug-in's verdict, and what cannot be loaded one line on standard error."""
    plugged.write("logs/worker_0.log", "OSError: [Errno 101] Network is unreachable: 10.9.9.9\n")
    done = plugged.mslaunch("diagnose", "logs", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pattern"] == "netns-unreachable"
    assert done.stderr == BROKEN


@pytest.mark.parametrize("transport", ["gone", "broken"])
def test_runs_of_a_transport_that_is_gone_or_broken_are_listed(plugged: Bench, transport: str) -> None:
    """ps needs no transport to show how runs ended, and loads none."""
    for _ in range(2):
        assert plugged.mslaunch("train", "-n", "1").returncode == 0
        record = plugged.latest / "run.json"
        record.write_text(record.read_text().replace('"transport": "local"', f'"transport": "{transport}"'))
    done = plugged.mslaunch("ps")
    assert done.stdout.count("succeeded") == 2
    assert done.stderr == ""


def test_patterns_of_a_user_count_before_all_others(bench: Bench) -> None:
    """Every YAML in ~/.config/mslaunch/patterns.d is read; XDG_CONFIG_HOME names another place than ~/.config."""
    bench.write("logs/worker_0.log", "No module named 'mindspore', since the quota of anna is used\n")
    bench.write("home/.config/mslaunch/patterns.d/site.yaml", ROW)
    bench.write("other/mslaunch/patterns.d/site.yaml", ROW.replace("site-quota", "other-quota"))
    for place, found in (("", "site-quota"), (str(bench.folder / "other"), "other-quota"), ("relative", "site-quota")):
        done = bench.mslaunch("diagnose", "logs", "--json", HOME=str(bench.folder / "home"), XDG_CONFIG_HOME=place)
        verdict = json.loads(done.stdout)
        assert (verdict["pattern"], verdict["summary"]) == (found, "The quota of anna is used up.")


def test_a_healthy_row_is_tried_before_every_cause(bench: Bench) -> None:
    """A user's pattern that is too broad does not make an alarm of what occurs in every run."""
    bench.write("config/mslaunch/patterns.d/broad.yaml", ROW.replace("quota of (\\w+)", "(Topology) build"))
    bench.write("logs/worker_0.log", "Topology build timed out., retry(3/1200).\n")
    done = bench.mslaunch("diagnose", "logs", XDG_CONFIG_HOME=str(bench.folder / "config"))
    assert "no sign of a failure" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("advice: Ask.", "advise: Ask.", "there is no key 'advise'; did you mean 'advice'?"),
        (", advice: Ask.", "", "advice is missing"),
        ("advice: Ask.", "advice: 3", "advice: text is wanted, got 3"),
        ("kind: cause", "kind: reason", "kind: cause, victim, healthy are known, got 'reason'"),
        ("(\\w+)", "(\\w+", "regex: missing ), unterminated subpattern at position 9"),
        ("quota of (\\w+)", "(q*)", "regex: it matches an empty line, so it would match every line"),
        ("{1}", "{2}", "summary: {2} is used, and regex has 1 groups"),
        ("advice: Ask.", "advice: Ask., example: quarter", "example: regex does not match it"),
        ("advice: Ask.", "advice: Ask., blames: 2", "blames: 2 is named, and regex has 1 groups"),
        ("advice: Ask.", "advice: Ask., blames: all", "blames: the number of a group of regex is wanted, got 'all'"),
    ],
)
def test_a_broken_row_is_named_and_the_others_count(old: str, new: str, words: str) -> None:
    """File, line and row are in the message, with what is wrong."""
    text = "# of this site\n" + ROW.replace("site-quota", "good") + ROW.replace(old, new)
    patterns, problems = parse_rows(text, "site.yaml", "patterns", checked_pattern)
    assert [pattern.id for pattern in patterns] == ["good"]
    assert problems == [f"site.yaml:3: row 2 (site-quota) does not count: {words}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- id: [", "site.yaml:2: not valid YAML"),
        ("id: x", "site.yaml:1: a list of patterns is wanted, got dict"),
        ("- just words", "site.yaml:1: row 1 does not count: keys are wanted"),
        (
            "- {id: x, kind: 2001-99-99}",
            "site.yaml:1: not valid YAML, so none of its patterns counts: a value cannot be read (month",
        ),
    ],
)
def test_a_file_that_is_no_table_is_named(text: str, words: str) -> None:
    """One line, and no pattern of it counts."""
    patterns, problems = parse_rows(text, "site.yaml", "patterns", checked_pattern)
    assert (patterns, len(problems)) == ([], 1)
    assert problems[0].startswith(words)


def test_an_empty_table_is_no_error() -> None:
    """A file of comments adds nothing."""
    assert parse_rows("# nothing yet\n", "site.yaml", "patterns", checked_pattern) == ([], [])


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """What is not text, or not a file, is told, and the other files count."""
    folder = tmp_path / "mslaunch" / "patterns.d"
    (folder / "folder.yaml").mkdir(parents=True)
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "good.yaml").write_text(ROW)
    (folder / "ignored.txt").write_text("not a table")
    patterns, problems = read_added({"XDG_CONFIG_HOME": str(tmp_path)})
    assert [pattern.id for pattern in patterns] == ["site-quota"]
    assert [trouble.split(": ")[0] for trouble in problems] == [str(folder / f"{n}.yaml") for n in ("binary", "folder")]


def test_added_patterns_may_use_all_of_pythons_regular_expressions(bench: Bench) -> None:
    """Names, flags and back references of one pattern do not disturb another."""
    rows = "".join(
        ROW.replace("site-quota", name).replace("quota of (\\w+)", regex)
        for name, regex in (("flags", "(?i)QUOTA (?P<who>\\w+)"), ("twice", "(?P<who>\\w+) \\1 again"))
    )
    bench.write("config/mslaunch/patterns.d/site.yaml", rows)
    for line, found in (("the quota anna", "flags"), ("no no again", "twice")):
        bench.write("logs/worker_0.log", line + "\n")
        done = bench.mslaunch("diagnose", "logs", "--json", XDG_CONFIG_HOME=str(bench.folder / "config"))
        assert (done.stderr, json.loads(done.stdout)["pattern"]) == ("", found)


def test_a_stopped_terminal_does_not_hold_up_a_warning() -> None:
    """Nobody reads standard error, and its pipe is full: the program goes on after a second."""
    code = (
        "import fcntl, os\nfrom mslaunch import plugins\n"
        "read, write = os.pipe()\nos.dup2(write, 2)\n"
        "os.write(2, b'x' * fcntl.fcntl(2, 1032))\n"  # F_GETPIPE_SZ
        "plugins.warn('x')\nos._exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 7


def test_a_plug_in_adds_metrics_that_lines_tell(plugged: Bench) -> None:
    """Its rows are tried before the built-in ones."""
    plugged.write("train.py", "print('step 3: round trip 0.25 s')\n")
    done = plugged.mslaunch("train", "-n", "1")
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (plugged.latest / "metrics.jsonl").read_text().splitlines())
    assert [row["round_trip"] for row in rows if row.get("step") == 3] == [0.25]
