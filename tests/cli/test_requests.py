"""What is asked of `mslaunch train`: wrong requests, dry runs, JSON, msrun's spellings."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from tests.beds.ssh_bed import free_port
from tests.conftest import Bench


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--script", "nix.py"), 2, "nix.py: no such script (--script)"),
        (("--rank-table", "nix.json"), 2, "nix.json: no such rank table"),
        (("--rank-table", "train.py"), 2, "train.py:1:1: error: the table: not JSON"),
        (("--config", "nix.yaml"), 2, "nix.yaml: no such config"),
        (("--config", "bad.yaml"), 2, "bad.yaml:2: launch has no key 'wrokers'; did you mean 'workers'?"),
        (("--devices", "0-3"), 2, "--workers says 2, but --devices (0-3) says 4"),
        (("--local_worker_num", "4"), 2, "--workers says 2, but --local_worker_num says 4"),
        (
            ("--method", "horovod"),
            2,
            "--method: there is no method 'horovod'. There are dynamic, msrun, mpirun, rank-table",
        ),
        (("--method", "msrum"), 2, "--method: there is no method 'msrum'; did you mean 'msrun'?"),
        (
            ("--config", "typo.yaml"),
            2,
            "typo.yaml:2 (launch.method): there is no method 'mpi-run'; did you",
        ),
        (("--runs-dir", "train.py"), 3, "train.py: cannot write the run's folder"),
        (("--runs-dir", "/proc/nix"), 3, "/proc/nix: cannot write the run's folder"),
        (("--run-id", "../x"), 2, "--run-id"),
        (("--run-id", "latest"), 2, "latest is what the newest run is called; give another name"),
        (("--config", "no_python.yaml"), 3, "/nix/python: no such Python"),
        (
            ("--config", "bare_python.yaml"),
            3,
            "has no MindSpore, and device_target: CPU in bare_python.yaml:1",
        ),
        (("--env", "MS_ROLE=x"), 2, "MS_ROLE is what mslaunch sets"),
    ],
)
def test_a_wrong_request_starts_nothing_and_leaves_nothing(
    bench: Bench, args: tuple[str, ...], code: int, words: str
) -> None:
    """One sentence with the fix, exit code 2 or 3, no traceback, no folder."""
    bench.write("train.py", "print('started')\n")
    bench.write("bad.yaml", "launch:\n  wrokers: 2\n")
    bench.write("typo.yaml", "launch:\n  method: mpi-run\n")
    bench.write("no_python.yaml", "launch:\n  python: /nix/python\n")
    bare = bench.folder.parent / "bare" / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    bench.write("bare_python.yaml", f"device_target: CPU\nlaunch:\n  python: {bare}\n")
    before = sorted(bench.folder.iterdir())
    done = bench.mslaunch("train", "--workers", "2", *args, *(() if "--script" in args else ("train.py",)))
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(bench.folder.iterdir()) == before


def test_nodes_that_slurm_has_not_chosen_cannot_be_checked(bench: Bench) -> None:
    """Outside a Slurm job there is no host to ask."""
    done = bench.mslaunch("check", "--transport", "slurm", SLURM_JOB_ID="")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: --transport: Slurm chooses the hosts when a job starts")


def test_a_folder_that_cannot_be_made_is_found_by_check(bench: Bench) -> None:
    """As by train, in a sentence."""
    bench.write("file", "")
    done = bench.mslaunch("check", "--runs-dir", "file/runs")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "file/runs: cannot write the run's folder: Not a directory. Give another --runs-dir." in done.stderr


def test_a_busy_port_is_refused_with_its_holder(bench: Bench) -> None:
    """Nothing is started, and the process that holds the port is named."""
    bench.write("train.py", "print('started')\n")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = bench.mslaunch("train", "-n", "1", "--master-port", str(port))
    assert done.returncode == 3
    assert f"port {port} is in use by" in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert not bench.runs.exists()


def test_a_run_id_is_used_once(bench: Bench) -> None:
    """An earlier run is never overwritten."""
    bench.write("train.py", "print('started')\n")
    assert bench.mslaunch("train", "-n", "1", "--run-id", "r1").returncode == 0
    done = bench.mslaunch("train", "-n", "1", "--run-id", "r1")
    assert done.returncode == 2
    assert "a run called r1 is there already" in done.stderr


def test_dry_run_shows_the_plan_and_where_settings_came_from(bench: Bench) -> None:
    """Nothing is written or started; --json gives the plan itself."""
    bench.write("train.py", "print('started')\n")
    bench.write("cfg.yaml", "seed: 1\nlaunch:\n  tail: all\n")
    args = ("train", "--workers", "6", "--config", "cfg.yaml", "--dry-run")
    done = bench.mslaunch(*args, MSLAUNCH_GRACE="3")
    assert done.returncode == 0, done.stderr
    for words in ("--workers", "cfg.yaml:3 (launch.tail)", "MSLAUNCH_GRACE", "RANK_SIZE=6", "ranks 4 to 5 likewise"):
        assert words in done.stdout
    plan = json.loads(bench.mslaunch(*args, "--json").stdout)
    assert (plan["world_size"], plan["tail"]) == (6, [0, 1, 2, 3, 4, 5])
    assert not bench.runs.exists()


def test_json_is_all_that_stdout_holds(bench: Bench) -> None:
    """Scripts read the record from stdout; people read the rest on stderr."""
    bench.write("train.py", "print('hello')\n")
    done = bench.mslaunch("train", "-n", "1", "--json")
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert "[rank 0] hello" in done.stderr


def test_msruns_spellings_are_understood(bench: Bench) -> None:
    """Habits of msrun users keep working."""
    bench.write("train.py", "print('hello')\n")
    port = str(free_port())
    done = bench.mslaunch(
        "train",
        "--worker_num",
        "2",
        "--local_worker_num",
        "2",
        "--master_port",
        port,
        "--log_dir",
        "out",
        "train.py",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((bench.folder / "out" / "latest" / "plan.json").read_text())["master"] == f"127.0.0.1:{port}"


def test_check_without_hosts_checks_this_machine(bench: Bench) -> None:
    """The same questions that other hosts are asked, and the same table."""
    done = bench.mslaunch("check", "--json")
    assert done.returncode == 0, done.stderr
    (host,) = json.loads(done.stdout)
    assert (host["host"], host["ready"], host["shared"]) == ("localhost", True, True)
    assert host["version"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize("name", ["slurmm", "nix"])
def test_a_transport_that_is_not_there_is_refused(bench: Bench, name: str) -> None:
    """With the nearest name, before anything starts."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", "-n", "1", "--transport", name, "train.py")
    assert done.returncode == 2
    assert f"--transport: there is no transport '{name}'" in done.stderr
