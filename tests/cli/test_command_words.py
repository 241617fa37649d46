"""A submitted job's command line: the launcher in the job reads it, and finds what was asked for."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mslaunch.cli import train
from mslaunch.cli.parsing import options
from mslaunch.launcher.pipeline import plan_only
from mslaunch.launcher.read import Request, read
from mslaunch.plan.model import File
from mslaunch.settings.launch import SETTINGS, HostEntry, LaunchSettings, SyncSettings
from mslaunch.settings.resolve import resolve
from mslaunch.settings.setting import READERS
from mslaunch.settings.yaml_config import JobConfig, split_assignments
from mslaunch.transports.base import Command
from mslaunch.transports.command_line import command_words
from mslaunch.transports.registry import BUILT_IN
from tests.beds.launch_bed import planned
from tests.beds.pod_bed import expanded

SYNC = {"before": [{"from": "obs://b/data", "to": "/cache/data"}], "after": [{"from": "out", "to": "s3://b/out"}]}
METRICS = [{"name": "acc", "regex": r"acc: ([\d.]+), \"top-1\""}]
VALUES: dict[str, list[Any]] = {
    "workers": [4, "4"],
    "script": ["train.py"],
    "module": ["pkg.train"],
    "command": [["bash", "run.sh", "a b"]],
    "devices": ["0-1,3", 0],
    "share_devices": [True, False],
    "method": ["msrun"],
    "allow_launcher": [True, False],
    "hosts": ["n1:8,n2:[0-3]", [{"address": "n1", "devices": "0-3"}], ["n1:8"], [HostEntry(address="n2")]],
    "hostfile": ["hosts.txt"],
    "accept_new_host_keys": [True, False],
    "transport": ["slurm"],
    "nodes": [2],
    "partition": ["npu"],
    "time": ["1:00:00"],
    "account": ["proj 7"],
    "requeue": [True, False],
    "sbatch_args": [["--gres=gpu:4", "--comment 'a b'"], []],
    "image": ["registry.example/job:1"],
    "namespace": ["team"],
    "volcano": [False, True],
    "kubernetes": [{"image": "i", "patch": {"service": {"spec": {"x": [1, 1e-05, None, "1e-3"]}}}}],
    "nnodes": ["2:4", 2],
    "node_rank": [1],
    "master": ["n0:29400"],
    "workers_per_node": [2],
    "launcher_only": [True, False],
    "join_timeout": [7.5],
    "secret_file": ["join secret"],
    "rank_table": ["table.json"],
    "env": [{"MODE": "fast: one", "TOKEN": None}],
    "master_port": [8118],
    "bind_cores": [True, False],
    "numa": [True, False],
    "core_map": [{0: "0-9", 1: "10-19"}, '{"0": "0-9"}'],
    "node_map": [{"device0": "0", "rank1": "1"}],
    "memory_map": [{0: "0-1"}],
    "tail": ["all", "0,2-3", 1],
    "stdin": ["none", 0],
    "runs_dir": ["my runs"],
    "run_id": ["one"],
    "cwd": ["submit"],
    "shared": [["a", "b c"], "a", []],
    "config_arg": ["--cfg", "true"],
    "python": [sys.executable, "/opt/my env/bin/python", "/opt/\udcff/python"],
    "setup": ["module load cann", "source a.sh\nexport X='y: #z' $(hostname) $$\n", "true", "1e-3", " 漢字 😀\x85"],
    "sync": [SYNC, READERS.reader_of(SyncSettings).read(SYNC)],
    "metrics": [False, METRICS],
    "grace": [3, 0.5, 1e-05],
    "timeout": [60, 1e16],
    "stall_timeout": [60.5],
    "on_stall": ["report"],
    "on_nan": ["stop"],
    "exit_skew": [60],
    "require_init": [True],
    "connect_timeout": [30.0],
    "host_lost_after": [30.0],
    "launcher_lost_after": [30.0],
    "report": [True],
    "max_restarts": [3],
    "min_workers": [2],
    "backoff": [0],
    "no_restart_codes": ["2,137", 2],
    "checkpoints": ["ckpt/{rank}"],
    "checkpoint_prefix": ["net"],
    "tags": [["a", "b"], "a", []],
    "on_end": ['mail -s "$MSLAUNCH_ENDED_TEXT" me@example.com'],
    "webhook": ["https://chat.example.com/hooks/abc", None],
}
CASES = [(name, value) for name, values in VALUES.items() for value in values]
PLACED = ("runs_dir", "run_id", "script", "module", "command", "rank_table", "env")
REFUSED = (
    *("devices", "hosts", "hostfile", "module", "command", "rank_table", "method"),
    *("numa", "bind_cores", "nnodes", "node_rank", "master", "webhook"),
)
"""Settings that are not for a queue's job, or not beside others; the webhook's URL is in no file."""


def parsed(words: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings and assignments that `mslaunch train` reads from words."""
    command = typer.main.get_command(train._app)
    own, _ = options.split(words, options.option_values(command))
    context = command.make_context("train", own)
    typed = {name: context.params[name] for name in options.LAUNCH}
    request = options.request(typed, options.ProgramWords())
    return dict(request.flags), request.assignments


def settings_of(flags: dict[str, Any], assignments: tuple[str, ...] = ()) -> LaunchSettings:
    return resolve(flags, {}, JobConfig(), split_assignments(assignments)[1]).values


def test_every_setting_has_values_here() -> None:
    """A new setting is tried too."""
    assert list(VALUES) == list(SETTINGS)


def test_the_command_line_reads_every_setting_back() -> None:
    """Each setting comes back by its flag or by --set, and overrides an assignment of the same name."""
    for name, value in CASES:
        flags = {name: value}
        other = f"launch.{name}=null" if getattr(LaunchSettings(), name) is None else "launch.grace=1"
        assignments = () if name in PLACED else (other,)
        command = Command(("mslaunch",), "train", (), flags, assignments, None, (), None, ())
        words = command_words(command, "")
        settings, own_assignments = parsed(words[1:])
        if name == "env":
            assert list(settings["env"]) == list(value)
        elif name in PLACED:
            assert words == ["train"], name
        else:
            assert settings_of(settings, own_assignments) == settings_of(flags, command.assignments), (name, value)


def test_a_setting_that_a_variable_gave_is_read_back() -> None:
    """A setting is passed on with the type that the model has."""
    for name, value in CASES:
        if name in PLACED:
            continue
        settings = settings_of({name: value})
        command = Command(("mslaunch",), "train", (), {name: getattr(settings, name)}, (), None, (), None, ())
        assert settings_of(*parsed(command_words(command, "")[1:])) == settings, (name, value)


def test_a_pod_has_what_variables_of_its_submitter_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not inherit them: MSLAUNCH_* settings are words, and the value of --env K goes with the secrets."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"MSLAUNCH_GRACE": "3", "MSLAUNCH_TAGS": "a b", "MSLAUNCH_BACKOFF": "7", "K": "v"}.items():
        monkeypatch.setenv(name, value)
    Path("train.py").write_text("print(1)\n")
    flags = {"transport": "kubernetes", "image": "i", "workers": 1, "env": {"K": None}}
    job = planned(Request(None, ("launch.backoff=8",), flags))
    words, _ = submitted(job.plan.files, "kubernetes")
    assert {"--set=launch.grace=3.0", "--tag=a", "--tag=b", "--set=launch.backoff=8", "--env=K"} <= {*words}
    assert not [word for word in words if "7" in word and "backoff" in word]
    assert job.site.secrets == {"K": "v"}


@pytest.mark.parametrize("transport", ["slurm", "kubernetes"])
def test_a_secret_of_an_assignment_is_in_no_file(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--set launch.env: the job has the variable's name, and its value with the secrets."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    flags = {"transport": transport, "workers": 1} | ({"image": "i"} if transport == "kubernetes" else {})
    job = planned(Request(None, ("launch.env={A: 1, K_TOKEN: hush-4711}",), flags))
    words, _ = submitted(job.plan.files, transport)
    assert {'--set=launch.env={"A": 1, "K_TOKEN": null}', "--env=K_TOKEN"} <= {*words}
    assert job.site.secrets == {"K_TOKEN": "hush-4711"}
    assert not [file.path for file in job.plan.files if "hush-4711" in file.content]


def asked_of(transport: str) -> dict[str, Any]:
    """One value of every setting that a job of this transport can have."""
    others = {name for one in BUILT_IN for name in BUILT_IN[one].own_settings} - {*BUILT_IN[transport].own_settings}
    left_out = {*others, *REFUSED}
    return {name: values[0] for name, values in VALUES.items() if name not in left_out} | {"transport": transport}


@pytest.mark.parametrize("transport", ["slurm", "kubernetes"])
def test_a_job_of_a_queue_has_the_settings_of_its_submitter(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words in the file that is submitted, read by the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "t")
    Path("train.py").write_text("print(1)\n")
    request = Request(None, (), asked_of(transport), ("--lr", "1"))
    words, variables = submitted(plan_only(request).files, transport)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, assignments = parsed(words[words.index("train") + 1 :])
    now, then = settings_of(found, assignments), read(request).spec.launch
    apart = {
        "transport",
        "script",
        "runs_dir",
        "run_id",
        *BUILT_IN[transport].own_settings,
        *BUILT_IN["join"].own_settings,
        "nnodes",
        "master",
    }
    compared = [name for name in SETTINGS if name not in apart]
    assert {name: getattr(now, name) for name in compared} == {name: getattr(then, name) for name in compared}
    assert len(compared) > 40


def submitted(files: tuple[File, ...], transport: str) -> tuple[list[str], dict[str, str]]:
    """The words of a submitted job, and the variables that its file gives it."""
    texts = {Path(file.path).name: file.content for file in files}
    if transport == "slurm":
        head, _, words = texts["job.sbatch"].partition("\nexec ")
        exports = [shlex.split(line)[1] for line in head.splitlines() if line.startswith("export ")]
        pairs = [one.partition("=") for one in exports]
        return shlex.split(words.replace("\\\n", " ").replace('"$run"', "one")), {
            name: value for name, _, value in pairs
        }
    objects = list(yaml.safe_load_all(texts["kubernetes.yaml"]))
    job = next(one for one in objects if one["metadata"]["labels"]["mslaunch-part"] == "launcher")
    container = job["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: expanded(one["value"], {}) for one in container["env"]}
    return [expanded(word, variables) for word in container["command"]], variables
