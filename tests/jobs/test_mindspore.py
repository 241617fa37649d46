"""Real MindSpore ranks on a CPU: the four methods, the group-size check, render, and the examples."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT, Bench, wait_for

# Found, not imported: importing MindSpore changes the environment that the jobs would inherit.
MINDSPORE = find_spec("mindspore")
pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif(MINDSPORE is None, reason="MindSpore is not installed (pip install '.[mindspore]')"),
]

ALL_REDUCE = """
import os
import mindspore as ms
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
total = ops.AllReduce()(ms.Tensor([get_rank() + 1.0]))
print("rank", get_rank(), "of", get_group_size(), "sum", float(total[0]), "device", os.environ["DEVICE_ID"])
"""


@pytest.mark.parametrize("method", ["dynamic", "msrun", "mpirun", "rank-table"])
def test_all_methods_run_the_same_script(bench: Bench, method: str, request: pytest.FixtureRequest) -> None:
    """Collectives are right, and folders, logs, variables and exit codes are the same for all four."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write("train.py", ALL_REDUCE)
    done = bench.mslaunch("train", "--workers", "2", "--devices", "3,5", "--method", method)
    assert done.returncode == 0, done.stdout
    for rank, device in ((0, 3), (1, 5)):
        assert f"rank {rank} of 2 sum 3.0 device {device}\n" in bench.log(rank)
        env = bench.environment(rank)
        assert (env["RANK_ID"], env["DEVICE_ID"], env["RANK_SIZE"], env["DEVICE_NUM"]) == (
            str(rank),
            str(device),
            "2",
            "2",
        )
        assert list(bench.work(rank).iterdir()) == []
    record = bench.record()
    assert [(r["exit_code"], r["signal"], r["pid"] is not None) for r in record["ranks"]] == [(0, None, True)] * 2
    assert (record["method"], record["state"]) == (method, "succeeded")
    if method == "rank-table":
        table = json.loads((bench.latest / "scripts" / "rank_table.json").read_text())
        assert [d["device_id"] for d in table["server_list"][0]["device"]] == ["3", "5"]
        assert env["RANK_TABLE_FILE"] == str(bench.latest / "scripts" / "rank_table.json")


@pytest.mark.parametrize("method", ["msrun", "mpirun", "rank-table"])
def test_other_methods_name_the_failing_rank_too(bench: Bench, method: str, request: pytest.FixtureRequest) -> None:
    """msrun and mpirun do not tell how a rank ended; the supervisor in the zip does."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write("train.py", "import os, sys, time\nif os.environ['RANK_ID'] == '1': sys.exit(7)\ntime.sleep(60)\n")
    done = bench.mslaunch("train", "--workers", "2", "--method", method)
    assert done.returncode == 7, done.stdout
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["exit_code"], verdict["victims"]) == (1, 7, [0])
    assert json.loads((bench.latest / "rank_1" / "exit.json").read_text())["code"] == 7


def test_a_group_of_another_size_ends_the_job(bench: Bench) -> None:
    """The real size is compared after init(), without a change to the script."""
    bench.write("train.py", "import os\nos.environ['MS_WORKER_NUM'] = '1'\n" + ALL_REDUCE)
    done = bench.mslaunch("train", "--workers", "2")
    assert done.returncode == 1, done.stdout
    assert "the planned group_size: 2 is not equal to the real group_size: 1" in done.stdout


def test_a_script_that_never_imports_mindspore_gets_no_scheduler(bench: Bench) -> None:
    """The scheduler is started by the first import, and by nothing else."""
    bench.write("train.py", "print('no mindspore')\n")
    assert bench.mslaunch("train", "-n", "2").returncode == 0
    assert not (bench.latest / "scheduler").exists()


@pytest.fixture
def python_without_mslaunch(tmp_path: Path) -> str:
    """A Python that has MindSpore and not mslaunch, as a cluster's nodes do."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    site = next((tmp_path / "bare" / "lib").glob("python*/site-packages"))
    assert MINDSPORE is not None
    assert MINDSPORE.origin is not None
    (site / "mindspore.pth").write_text(f"{Path(MINDSPORE.origin).parent.parent}\n")
    python = str(tmp_path / "bare" / "bin" / "python")
    assert subprocess.run([python, "-c", "import mslaunch"], cwd=tmp_path, capture_output=True).returncode != 0
    (tmp_path / "bare" / "bin" / "msrun").symlink_to(Path(sys.executable).with_name("msrun"))
    return python


@pytest.mark.parametrize("method", ["msrun", "mpirun", "rank-table"])
def test_rendered_scripts_run_where_mslaunch_is_not_installed(
    bench: Bench, method: str, python_without_mslaunch: str, request: pytest.FixtureRequest
) -> None:
    """The folder can be moved, and needs MindSpore only."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write("train.py", ALL_REDUCE + "from mslaunch.runtime import load_config\nprint('lr', load_config().lr)\n")
    bench.write("cfg.yaml", "lr: 0.5\n")
    done = bench.mslaunch(
        "render", "--method", method, "-n", "2", "-o", "out", "--config", "cfg.yaml", "--script", "train.py"
    )
    assert done.returncode == 0, done.stderr
    moved = bench.folder.parent / "moved here"
    (bench.folder / "out").rename(moved)
    script = next(moved.glob("scripts/*.sh"))
    env = {**bench.env, "PYTHON": python_without_mslaunch, "RANK_ID": "9", "MS_ROLE": "MS_SCHED"}
    ran = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for rank in (0, 1):
        log = (moved / f"rank_{rank}" / "log.txt").read_text()
        assert f"rank {rank} of 2 sum 3.0" in log
        assert "lr 0.5" in log
        assert json.loads((moved / f"rank_{rank}" / "exit.json").read_text())["code"] == 0


def example(bench: Bench, name: str, *args: str) -> str:
    config = ROOT / "examples" / name / "config.yaml"
    done = bench.mslaunch("train", "--config", str(config), *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_ranks_agree(bench: Bench, workers: int) -> None:
    """Every rank is accurate, and all hold the same parameters."""
    logs = [bench.log(rank) for rank in range(workers)]
    accuracies = [float(re.findall(r"accuracy ([\d.]+)", log)[-1]) for log in logs]
    hashes = {re.findall(r"parameters ([0-9a-f]{64})", log)[-1] for log in logs}
    assert min(accuracies) > 0.9, accuracies
    assert len(hashes) == 1, hashes


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_data_parallel_example(bench: Bench, mode: str) -> None:
    """Model.train on two ranks reaches its accuracy with identical parameters, and eval.py agrees."""
    output = example(bench, "data_parallel", "--workers", "2", "--set", f"context_mode={mode}")
    check_ranks_agree(bench, 2)
    assert re.search(r"\[rank 0\] epoch: \d+ step: \d+, loss is", output)
    checkpoints = sorted(bench.work(0).rglob("*.ckpt"), key=os.path.getmtime)
    trained = re.findall(r"accuracy ([\d.]+)", bench.log(0))[-1]
    script = str(ROOT / "examples" / "data_parallel" / "eval.py")
    evaluated = example(
        bench, "data_parallel", "--workers", "1", "--script", script, "--", "--checkpoint", str(checkpoints[-1])
    )
    assert f"accuracy {trained}" in evaluated


def test_what_mindspore_writes_in_every_healthy_run_is_not_shown(bench: Bench) -> None:
    """Its warnings about a start that goes well are in the log, and so is everything for `mslaunch logs`."""
    config = str(ROOT / "examples" / "data_parallel" / "config.yaml")
    bench.env.pop("GLOG_v")
    done = bench.mslaunch("train", "--config", config, "--workers", "2", "--tail", "all")
    assert done.returncode == 0, done.stdout
    assert "epoch: 1 step: " in done.stdout
    assert [line for line in done.stdout.splitlines() if "[WARNING]" in line or "[INFO]" in line] == []
    assert "Cluster is successfully initialized." in bench.log(1)
    assert "Cluster is successfully initialized." in bench.mslaunch("logs", "--rank", "1", "--all").stdout


def test_functional_trainer_example(bench: Bench) -> None:
    """The functional loop on two ranks reaches its accuracy, keeps the best checkpoint, and ranks agree."""
    example(bench, "functional_trainer", "--workers", "2")
    check_ranks_agree(bench, 2)
    assert [path.name for path in bench.work(0).rglob("*.ckpt")] == ["best.ckpt"]


def test_a_restarted_training_ends_as_an_unbroken_one(bench: Bench) -> None:
    """A rank is killed in mid-training; the job resumes from the newest complete checkpoint, bit for bit."""
    config = str(ROOT / "examples" / "data_parallel" / "config.yaml")
    args = ("train", "--config", config, "--workers", "2", "--set", "epochs=12", "--set", "launch.backoff=0")
    assert bench.mslaunch(*args).returncode == 0
    unbroken = re.findall(r"parameters ([0-9a-f]{64})", bench.log(0))
    process = bench.start(*args, "--max-restarts", "1", "--run-id", "broken")
    checkpoints = bench.runs / "broken" / "rank_1" / "work" / "checkpoints"
    wait_for(lambda: list(checkpoints.glob("spiral-[4-8]_*.ckpt")), "epoch 4", seconds=120)
    started = [json.loads(line) for line in (bench.runs / "broken" / "events.jsonl").read_text().splitlines()]
    os.kill(next(e["pid"] for e in started if e["ev"] == "started" and e["rank"] == 1), signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert "was killed by SIGKILL" in output
    assert re.search(r"attempt 2 of 3 in 0 s, resuming from spiral-\d+_\d+\.ckpt", output)
    assert (bench.latest / "rank_0" / "log.0.txt").exists()
    assert "resuming from" in bench.log(1)
    check_ranks_agree(bench, 2)
    assert re.findall(r"parameters ([0-9a-f]{64})", bench.log(0)) == unbroken
    attempts = bench.record()["attempts"]
    assert [(a["attempt"], a["exit_code"], a["verdict"]["rank"]) for a in attempts] == [(0, 137, 1)]


def test_mindspore_in_a_process_of_the_ranks_own_finds_its_scheduler(bench: Bench) -> None:
    """A script may be a wrapper that starts the real one, as it may under msrun."""
    bench.write("inner.py", ALL_REDUCE)
    bench.write(
        "train.py",
        "import os, subprocess, sys\ninner = os.path.join(os.path.dirname(__file__), 'inner.py')\n"
        "sys.exit(subprocess.run([sys.executable, inner]).returncode)\n",
    )
    assert bench.mslaunch("train", "-n", "2").returncode == 0
    assert "rank 1 of 2 sum 3.0" in bench.log(1)


def test_a_port_taken_between_check_and_start_is_named(bench: Bench) -> None:
    """The scheduler cannot bind: no rank is to blame, the exit code is 125, and the advice is there."""
    bench.write(
        "train.py",
        "import os, socket\nif os.environ['RANK_ID'] == '0':\n    taken = socket.socket()\n"
        "    taken.bind(('127.0.0.1', int(os.environ['MS_SCHED_PORT'])))\n    taken.listen()\n" + ALL_REDUCE,
    )
    done = bench.mslaunch("train", "-n", "2", "--timeout", "150")
    verdict = bench.record()["verdict"]
    assert done.returncode == 125, done.stdout
    assert (verdict["rank"], verdict["cause"], verdict["pattern"]) == (None, "scheduler", "scheduler-port-busy")
    assert "--master-port" in verdict["advice"]


def test_a_dead_scheduler_ends_the_job(bench: Bench) -> None:
    """kill -9 of MindSpore's scheduler in mid-job is noticed at once."""
    bench.write("train.py", ALL_REDUCE + "print('formed', flush=True)\nimport time; time.sleep(60)\n")
    process = bench.start("train", "-n", "2")
    wait_for(lambda: bench.leftovers() and "formed" in bench.log(0), "the cluster")
    events = [json.loads(line) for line in (bench.latest / "events.jsonl").read_text().splitlines()]
    os.kill(next(e["pid"] for e in events if e["ev"] == "started" and e["role"] == "scheduler"), signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 125, output
    assert "MindSpore's scheduler died" in output


def test_a_rank_that_fails_before_init_is_named_at_once(bench: Bench) -> None:
    """The others wait in init() and are stopped."""
    bench.write("train.py", "import os\nif os.environ['RANK_ID'] == '1': open('dataset/train.rec')\n" + ALL_REDUCE)
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 1
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["victims"]) == (1, [0])
    assert verdict["summary"].startswith("FileNotFoundError")


ALONE = "import mindspore\nprint('trained')\n"


def test_ranks_that_never_call_init_are_said_to_train_alone(bench: Bench) -> None:
    """On the screen, in run.json, and not as a failure."""
    bench.write("train.py", ALONE)
    done = bench.mslaunch("train", "--workers", "2")
    note = "2 ranks ran, none called init(): each worked alone"
    assert done.returncode == 0, done.stdout
    assert f"mslaunch: {note}\n" in done.stdout
    assert bench.record()["notes"][-1] == note


def test_ranks_that_never_call_init_fail_where_that_is_required(bench: Bench) -> None:
    """With exit code 1 and a verdict; a restart would not mend it, and is not tried."""
    bench.write("train.py", ALONE)
    bench.write("cfg.yaml", "launch:\n  require_init: true\n  max_restarts: 2\n  config_arg: null\n")
    done = bench.mslaunch("train", "--workers", "2", "--config", "cfg.yaml")
    assert done.returncode == 1, done.stdout
    verdict = bench.record()["verdict"]
    assert (verdict["cause"], verdict["rank"]) == ("no init", None)
    assert "each worked alone" in verdict["summary"]
    assert bench.record()["attempts"] == []


def test_a_program_that_calls_init_in_a_process_of_its_own_is_not_accused(bench: Bench) -> None:
    """The rank itself has no MindSpore, so nothing is known."""
    bench.write("inner.py", ALONE)
    bench.write("train.sh", "#!/bin/sh\nexec python ../../code/inner.py\n").chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = bench.mslaunch("train", "--workers", "2", "train.sh", PATH=path)
    assert done.returncode == 0, done.stdout
    assert "worked alone" not in done.stdout
    assert bench.log(0) == "trained\n"


def test_a_rank_that_ends_without_init_is_the_verdict(bench: Bench) -> None:
    """Its peers wait for it in init() until a limit ends the job."""
    bench.write(
        "train.py",
        "import os\nif os.environ['RANK_ID'] == '1': raise SystemExit\n"
        "import mindspore\nmindspore.communication.init()\n",
    )
    bench.write("cfg.yaml", "launch:\n  exit_skew: 10\n  grace: 1\n  config_arg: null\n")
    done = bench.mslaunch("train", "--workers", "2", "--config", "cfg.yaml")
    assert done.returncode == 124, done.stdout
    assert "mslaunch: rank 1 has ended without init(); rank 0 waits for it in init()\n" in done.stdout
    assert bench.record()["verdict"]["rank"] == 1
