"""Whole plans, compared with golden files, and the rules behind them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import Disagreement, NotReadyError, RequestError
from mslaunch.hosts import Host
from mslaunch.plan.binding import core_share
from mslaunch.plan.make import make_plan
from mslaunch.plan.methods import find_method
from mslaunch.plan.methods.method import Method, MethodPlan, PlacedJob
from mslaunch.plan.model import Facts, File, HostFacts, Plan, from_json, to_json
from mslaunch.plan.program import Program
from mslaunch.plan.spec import JobSpec, agree_on_workers, local_host
from mslaunch.plan.variables import inherited_launch_variables
from mslaunch.ranktable.generate import from_hosts
from mslaunch.ranktable.versions import read_table, write_table
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import JobConfig, parse_config

GOLDEN = Path(__file__).parent.parent / "golden"
CONFIG = "seed: 1\ndevice_num: 1\ntrain_dir: data\nlaunch:\n  script: train.py\n"


def spec_of(text: str = "", args: tuple[str, ...] = (), **flags: Any) -> JobSpec:
    config = parse_config(text, "cfg.yaml") if text else JobConfig()
    settings = resolve(flags, {}, config)
    return JobSpec(settings.values, settings.sources, config, find_method(settings), args, notes=settings.notes)


def facts_of(hosts: tuple[Host, ...] = (), **changes: Any) -> Facts:
    names = [host.name for host in hosts] or ["localhost"]
    facts = Facts(
        run_id="r1",
        run_dir="/home/u/my job/mslaunch-runs/r1",
        submit_dir="/home/u/my job",
        job_dir="/home/u/my job",
        program=Program("script", "train.py"),
        port=8118,
        device_target="CPU",
        hosts={name: HostFacts("/opt/venv/bin/python", (0, 1, 2, 3)) for name in names},
        environment={"PATH": "/bin", "TOKEN": "s3cret"},
    )
    return replace(facts, **changes)


def plan_of(spec: JobSpec, **changes: Any) -> Plan:
    workers = agree_on_workers(spec, ())
    changes = {"program": Program("script", "train.py", spec.script_args), **changes}
    return make_plan(spec, (local_host(spec, workers, (), "CPU"),), facts_of(**changes))


def compare(name: str, text: str) -> None:
    """Compare with a golden file; UPDATE_GOLDEN=1 writes it anew, to be read in the diff."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("method", ["dynamic", "msrun", "mpirun", "rank-table"])
def test_whole_plans_are_as_reviewed(method: str) -> None:
    """Each method's plan, files and variables included, is the one in golden/."""
    flags: dict[str, Any] = {"workers": 2, "method": method, "bind_cores": True, "env": {"A": "it's b", "TOKEN": None}}
    plan = plan_of(spec_of(CONFIG, ("--lr", "0.1", "--data", "../d"), **flags), outside=frozenset({"../d"}))
    compare(f"plan_{method}.json", to_json(plan))
    for file in plan.files:
        if file.path.endswith(".sh"):
            compare(Path(file.path).name, file.content)


class Mine(Method):
    """A method that starts nothing, and writes one file."""

    name = "mine"
    files = (File("scripts/mine.txt", "mine"),)

    def plan(self, job: PlacedJob) -> MethodPlan:
        return MethodPlan(job.env, (), self.files)


def test_the_method_of_the_job_makes_its_processes_and_files() -> None:
    """make_plan asks the job's method, built in or not, and records its name."""
    plan = plan_of(replace(spec_of(workers=2), method=Mine()))
    assert (plan.method, plan.processes, plan.files[-1:]) == ("mine", (), Mine.files)


def test_a_plan_survives_json() -> None:
    """What is written to plan.json is read back as the same plan."""
    plan = plan_of(spec_of(CONFIG, workers=3, method="mpirun"))
    assert from_json(to_json(plan)) == plan


def test_no_secret_is_in_a_plan() -> None:
    """A value taken from the environment is a name in the plan, never a value."""
    plan = plan_of(spec_of(CONFIG, workers=2, method="msrun", env={"TOKEN": None}))
    assert plan.secrets == ("TOKEN",)
    assert "s3cret" not in to_json(plan)


def test_settings_are_shown_as_the_yaml_takes_them() -> None:
    """A dry run and a comparison show no Python: what they show can be written into a YAML."""
    text = """launch:
  hosts: ["n1:4", {address: n2, devices: "0,2", user: me}]
  core_map: {0: 0-1, 1: [3]}
  env: {A: "it's b"}
  tags: [a, b]
  metrics: [{name: acc, regex: "acc: (.*)"}]
  sync: {before: [{from: "obs://b/d", to: /cache}]}
  share_devices: true
  tail: 0-1
"""
    hosts = (Host("n1", "n1", (0, 1, 2, 3)), Host("n2", "n2", (0, 2), user="me"))
    sources = make_plan(spec_of(text), hosts, facts_of(hosts)).sources
    shown = {name: source.partition(", from cfg.yaml")[0] for name, source in sources.items() if "cfg.yaml" in source}
    assert shown == {
        "hosts": '[{address: n1, devices: 0-3}, {address: n2, devices: "0,2", user: me}]',
        "core_map": "{0: 0-1, 1: 3}",
        "env": '{A: "it\'s b"}',
        "tags": "[a, b]",
        "metrics": '[{name: acc, regex: "acc: (.*)"}]',
        "sync": '{before: [{from: "obs://b/d", to: /cache}]}',
        "share_devices": "true",
        "tail": "0-1",
    }
    assert sources["devices"] == "not set, from default"


def test_ranks_are_contiguous_per_host_in_the_order_given() -> None:
    """Unequal hosts work; DEVICE_NUM is what a rank's own host gives."""
    hosts = (Host("n2", "10.0.0.2", (0, 1, 6)), Host("n1", "10.0.0.1", (4,)))
    plan = make_plan(spec_of(workers=4), hosts, facts_of(hosts))
    placed = [(w.rank, w.host, w.env["DEVICE_ID"], w.env["DEVICE_NUM"], w.env["RANK_ID"]) for w in plan.workers]
    assert placed == [
        (0, "n2", "0", "3", "0"),
        (1, "n2", "1", "3", "1"),
        (2, "n2", "6", "3", "2"),
        (3, "n1", "4", "1", "3"),
    ]
    assert plan.env["MS_SCHED_HOST"] == "10.0.0.2"


def test_on_ascend_mpirun_and_rank_table_need_no_scheduler() -> None:
    """There MindSpore finds its peers by MPI or by the table; on a CPU it needs the MS_* variables too."""
    for method in ("mpirun", "rank-table"):
        spec = spec_of(workers=2, method=method)
        host = local_host(spec, 2, (0, 1), "Ascend")
        on_ascend = make_plan(spec, (host,), facts_of(device_target="Ascend"))
        on_cpu = make_plan(spec, (host,), facts_of())
        assert not any(name in on_ascend.env for name in ("MS_SCHED_PORT", "MS_WORKER_NUM"))
        assert "MS_ROLE" not in on_ascend.workers[0].env
        assert on_ascend.workers[0].env["ASCEND_PROCESS_LOG_PATH"].endswith("/rank_0/plog")
        assert on_cpu.env["MS_WORKER_NUM"] == "2"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Program("script", "src/train.py", ("a",)), ["/code/src/train.py", "a"]),
        (Program("module", "pkg.train", ("a",)), ["-m", "pkg.train", "a"]),
        (Program("executable", "bash", ("run.sh",)), ["-x", "bash", "run.sh"]),
        (Program("executable", "./run.sh"), ["-x", "/code/run.sh"]),
        (Program("executable", "/opt/bin/tool"), ["-x", "/opt/bin/tool"]),
    ],
)
def test_every_kind_of_program_is_started_by_the_worker(program: Program, words: list[str]) -> None:
    """What lies in the job's folder is run from the snapshot; the scheduler waits until a rank needs it."""
    plan = plan_of(spec_of(workers=1), program=program)
    scheduler, worker = plan.processes
    assert [word.replace(plan.run_dir, "") for word in worker.argv[2:]] == words
    assert scheduler.start == "on-import"
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize(
    ("text", "flags", "table", "expected"),
    [
        ("", {}, 0, 1),
        ("", {"workers": 8}, 0, 8),
        ("device_num: 1", {"workers": 8}, 0, 8),
        ("seed: 1", {"workers": 8}, 0, 8),
        ("device_num: 4", {}, 0, 4),
        ("", {"devices": "0-3,6"}, 0, 5),
        ("", {}, 2, 2),
        ("device_num: 2", {"workers": 2, "devices": "1,3"}, 2, 2),
    ],
)
def test_whoever_names_a_number_of_ranks_is_heard(text: str, flags: dict[str, Any], table: int, expected: int) -> None:
    """Workers, device_num, devices and rank table each suffice, and device_num 1 or absent is filled in."""
    assert agree_on_workers(_with_table(spec_of(text, **flags), table), ()) == expected


@pytest.mark.parametrize(
    ("text", "flags", "table", "names"),
    [
        ("device_num: 4", {"workers": 8}, 0, ("--workers says 8", "device_num in cfg.yaml:1 says 4")),
        ("", {"workers": 8, "devices": "0-3"}, 0, ("--workers says 8", "--devices (0-3) says 4")),
        ("", {"workers": 8}, 2, ("--workers says 8", "the rank table t.json says 2")),
        ("launch:\n  workers: 2\n  devices: [1]", {}, 0, ("cfg.yaml:2", "cfg.yaml:3", "says 1")),
    ],
)
def test_two_numbers_of_ranks_are_a_disagreement(
    text: str, flags: dict[str, Any], table: int, names: tuple[str, ...]
) -> None:
    """Both numbers are named, and where each came from."""
    with pytest.raises(Disagreement) as caught:
        agree_on_workers(_with_table(spec_of(text, **flags), table), ())
    assert all(name in str(caught.value) for name in names)


def _with_table(spec: JobSpec, ranks: int) -> JobSpec:
    if not ranks:
        return spec
    return replace(
        spec, rank_table=read_table(write_table(from_hosts((Host("a", "10.0.0.1", tuple(range(ranks))),))), "t.json")
    )


def test_the_devices_found_are_the_default_on_an_accelerator() -> None:
    """Without a number, a job takes all devices of the machine, and only those that exist."""
    spec = spec_of()
    assert agree_on_workers(spec, (0, 1, 2)) == 3
    assert local_host(spec_of(workers=2), 2, (4, 5, 6), "Ascend").devices == (4, 5)
    with pytest.raises(NotReadyError, match="its Ascend devices are 0-1"):
        local_host(spec_of(workers=4), 4, (0, 1), "Ascend")


def test_device_num_is_filled_in_for_the_script() -> None:
    """The effective configuration names the real number of ranks, and keeps help texts and choices."""
    plan = plan_of(spec_of("lr: 1\ndevice_num: 1\n---\nlr: help\n", workers=4))
    files = {file.path: file.content for file in plan.files}
    assert files["config.yaml"] == "lr: 1\ndevice_num: 4\n---\nlr: help\n"
    assert json.loads(files["config.json"]) == {"lr": 1, "device_num": 4}


def test_config_argument_can_be_renamed_or_left_out() -> None:
    """Scripts that name their configuration differently, or not at all, are launched too."""
    path = "/home/u/my job/mslaunch-runs/r1/config.yaml"
    assert f"--config_path={path}" in plan_of(spec_of("a: 1", workers=1)).workers[0].argv
    assert f"-c={path}" in plan_of(spec_of("a: 1", workers=1, config_arg="-c")).workers[0].argv
    none = plan_of(spec_of("a: 1\nlaunch:\n  config_arg: null", workers=1)).workers[0].argv
    assert not any("config.yaml" in word for word in none)
    assert not any("config" in word for word in plan_of(spec_of(workers=1)).workers[0].argv)


def test_paths_outside_the_job_are_made_absolute_and_said() -> None:
    """An argument or value that works from the submit folder works from rank_R."""
    spec = spec_of("data_dir: ../data\nmode: train", ("--out=../o", "in/x"), workers=1)
    plan = plan_of(spec, outside=frozenset({"../data", "../o"}))
    assert plan.workers[0].argv[-2:] == ("--out=/home/u/o", "in/x")
    assert json.loads(next(f.content for f in plan.files if f.path == "config.json"))["data_dir"] == "/home/u/data"
    assert sum("is given to the script as" in note for note in plan.notes) == 2


def test_inherited_launch_variables_are_dropped_and_said() -> None:
    """What another launcher left in the shell reaches no rank; the user's own tunables do."""
    shell = {
        "MS_ROLE": "x",
        "RANK_ID": "3",
        "MS_TOPO_TIMEOUT": "9",
        "OMPI_MCA_btl": "tcp",
        "PMIX_RANK": "0",
        "HOME": "/",
    }
    plan = plan_of(spec_of(workers=1), environment=shell)
    assert plan.unset == ("MS_ROLE", "PMIX_RANK", "RANK_ID")
    assert "MS_ROLE, PMIX_RANK, RANK_ID" in plan.notes[0]
    assert "MS_TOPO_TIMEOUT" not in plan.env
    inside = {**shell, "OMPI_COMM_WORLD_RANK": "0"}
    assert "OMPI_MCA_btl" in inherited_launch_variables(inside)


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ({"RANK_TABLE_FILE": "/t.json"}, "RANK_TABLE_FILE is not used; give --rank-table FILE"),
        ({"RANK_SIZE": "2", "DEVICE_NUM": "2"}, "RANK_SIZE=2 is set here, and 1 rank is started: give --workers 2"),
        ({"DEVICE_NUM": "8"}, "DEVICE_NUM=8 is set here, and 1 rank is started: give --workers 8"),
    ],
)
def test_variables_that_ask_for_another_job_are_said_with_the_option(shell: dict[str, str], said: str) -> None:
    """Scripts for rank tables export them; a rank that launches has those of its own job."""
    assert plan_of(spec_of(workers=1), environment=shell).notes[1:] == (said,)
    inside = plan_of(spec_of(workers=1), environment={**shell, "MSLAUNCH_RUN_DIR": "/r"})
    assert said not in inside.notes


@pytest.mark.parametrize("size", ["1", "0", "", "two"])
def test_a_size_that_is_that_of_the_job_or_none_is_not_said(size: str) -> None:
    """Only one that differs may have been meant."""
    assert len(plan_of(spec_of(workers=1), environment={"RANK_SIZE": size}).notes) == 1


@pytest.mark.parametrize(
    ("ranks", "forming", "answering"),
    [(128, "600", None), (129, "1800", "900"), (1024, "1800", "900"), (1025, "3600", "1800")],
)
def test_mindspores_timeouts_grow_with_the_job(ranks: int, forming: str, answering: str | None) -> None:
    """Above 128 ranks its FAQ advises 900 to 1800 s; smaller jobs keep what they had."""
    plan = plan_of(spec_of(workers=ranks))
    assert (plan.env["MS_TOPO_TIMEOUT"], plan.env.get("MS_NODE_TIMEOUT")) == (forming, answering)


@pytest.mark.parametrize(("ranks", "interval"), [(128, "1"), (129, None)])
def test_large_jobs_keep_mindspores_retry_interval(ranks: int, interval: str | None) -> None:
    """Above 128 ranks MindSpore counts tries, one for each 3 s of MS_NODE_TIMEOUT: 1 s would cut it to a third."""
    env = plan_of(spec_of(workers=ranks)).env
    assert {env.get("MS_RETRY_INTERVAL_LOWER"), env.get("MS_RETRY_INTERVAL_UPPER")} == {interval}
    assert env["PYTHONUNBUFFERED"] == "1"


def test_a_users_own_timeouts_stay_in_large_jobs() -> None:
    """Those of the shell and of launch.env, also in a script that is started by hand."""
    shell = plan_of(spec_of(workers=2000), environment={"MS_NODE_TIMEOUT": "77"})
    assert "MS_NODE_TIMEOUT" not in shell.env
    plan = plan_of(spec_of(workers=2000, method="msrun", env={"MS_TOPO_TIMEOUT": "88"}))
    assert (plan.env["MS_TOPO_TIMEOUT"], plan.env["MS_NODE_TIMEOUT"]) == ("88", "1800")
    script = next(file.content for file in plan.files if file.path.endswith("msrun.sh"))
    assert '[ -n "${MS_NODE_TIMEOUT:-}" ] || MS_NODE_TIMEOUT=1800\n  export MS_NODE_TIMEOUT\n' in script


def test_a_rank_is_not_given_variables_that_are_its_launchers() -> None:
    """--env RANK_ID=0 would give every rank the same number."""
    with pytest.raises(RequestError, match="RANK_ID is what mslaunch sets"):
        plan_of(spec_of(workers=2, env={"RANK_ID": "0"}))
    with pytest.raises(RequestError, match="NOPE has no value here"):
        plan_of(spec_of(workers=2, env={"NOPE": None}))


def test_cores_are_cut_into_equal_shares() -> None:
    """Shares do not overlap while there are enough cores; then ranks take turns."""
    assert [core_share((0, 1, 2, 3, 4), rank, 2) for rank in range(2)] == [(0, 1), (2, 3)]
    assert [core_share((3, 7), rank, 3) for rank in range(3)] == [(3,), (7,), (3,)]


def test_threads_follow_the_cores_unless_given() -> None:
    """OMP_NUM_THREADS matches the share, and the user's own value wins."""
    bound = plan_of(spec_of(workers=2, bind_cores=True))
    assert [w.env["MSLAUNCH_CORES"] for w in bound.workers] == ["0-1", "2-3"]
    assert bound.workers[0].env["OMP_NUM_THREADS"] == "2"
    one = {"OMP_NUM_THREADS": "1"}
    for plan in (
        plan_of(spec_of(workers=2, bind_cores=True), environment=one),
        plan_of(spec_of(workers=2, bind_cores=True, env=one)),
    ):
        assert "OMP_NUM_THREADS" not in plan.workers[0].env


def test_tail_names_ranks_that_exist() -> None:
    """Rank 0 by default; all, none or a list on demand; a rank beyond the job is an error."""
    assert plan_of(spec_of(workers=3)).tail == (0,)
    assert plan_of(spec_of(workers=3, tail="all")).tail == (0, 1, 2)
    assert plan_of(spec_of(workers=3, tail="none")).tail == ()
    with pytest.raises(RequestError, match=r"--tail: rank 3 does not exist; the ranks are 0 to 2"):
        plan_of(spec_of(workers=3, tail="1-3"))
