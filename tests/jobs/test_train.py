"""`mslaunch train` with real processes, and scripts that need no MindSpore."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MSLAUNCH, Bench, wait_for

PRINT_ENV = "import os, json\nprint(json.dumps(dict(os.environ)))\n"
LAUNCH_VARIABLES = {
    "RANK_ID": "1",
    "RANK_SIZE": "2",
    "DEVICE_ID": "5",
    "DEVICE_NUM": "2",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "0",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MS_ROLE": "MS_WORKER",
    "MS_NODE_ID": "1",
    "MS_WORKER_NUM": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MSLAUNCH_HOST": "localhost",
    "MSLAUNCH_ATTEMPT": "0",
}


def test_every_rank_has_its_folder_environment_and_record(bench: Bench) -> None:
    """Folders, variables, logs, run.json and exit code are what users and scripts rely on."""
    bench.write("train.py", PRINT_ENV)
    done = bench.mslaunch("train", "--workers", "2", "--devices", "2,5", "--run-id", "r1", "--script", "train.py")
    assert done.returncode == 0, done.stderr
    run = bench.runs / "r1"
    assert {path.name for path in run.iterdir()} == {
        *(
            "plan.json",
            "run.json",
            "events.jsonl",
            "metrics.jsonl",
            "config.yaml",
            "config.json",
            "mslaunch.zip",
            "mslaunch_rank.py",
            "code",
            "code.json",
        ),
        *("rank_0", "rank_1"),
    }
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert (bench.runs / "latest").resolve() == run.resolve()
    seen = json.loads(bench.log(1))
    assert {name: seen[name] for name in LAUNCH_VARIABLES} == LAUNCH_VARIABLES
    assert seen["MASTER_PORT"] not in ("", seen["MS_SCHED_PORT"])
    assert seen["MSLAUNCH_RUN_DIR"] == str(run)
    assert seen["MSLAUNCH_SUBMIT_DIR"] == str(bench.folder)
    assert seen["PWD"] == str(run / "rank_1" / "work")
    record = bench.record()
    assert (record["state"], record["exit_code"], record["world_size"], record["method"]) == (
        "succeeded",
        0,
        2,
        "dynamic",
    )
    assert [(r["rank"], r["device_id"], r["exit_code"], r["signal"]) for r in record["ranks"]] == [
        (0, 2, 0, None),
        (1, 5, 0, None),
    ]
    assert record["started"] <= record["ranks"][0]["started"] <= record["ranks"][0]["ended"] <= record["ended"]
    assert {"pid", "start_time", "host", "boot_id"} <= set(record["launcher"])


def test_the_console_shows_rank_0_and_logs_keep_all(bench: Bench) -> None:
    """Output of rank 0 has a prefix on the screen; every rank's is whole in its log."""
    bench.write(
        "train.py",
        "import os, sys\n"
        "for i in range(500): print(os.environ['RANK_ID'], i, file=sys.stderr if i % 2 else sys.stdout)\n",
    )
    done = bench.mslaunch("train", "-n", "3")
    shown = [line for line in done.stdout.splitlines() if line.startswith("[rank ")]
    assert shown == [f"[rank 0] 0 {i}" for i in range(500)]
    for rank in range(3):
        assert bench.log(rank).splitlines() == [f"{rank} {i}" for i in range(500)]


def test_tail_chooses_what_is_shown(bench: Bench) -> None:
    """All, none or some ranks; the last line needs no newline."""
    bench.write("train.py", "import os\nprint('from', os.environ['RANK_ID'], end='')\n")
    assert "[rank " not in bench.mslaunch("train", "-n", "3", "--tail", "none").stdout
    shown = bench.mslaunch("train", "-n", "3", "--tail", "1-2").stdout.splitlines()
    assert sorted(line for line in shown if line.startswith("[")) == ["[rank 1] from 1", "[rank 2] from 2"]


def test_paths_work_as_they_did(bench: Bench) -> None:
    """Relative paths, imports and paths from __file__ find the job's files; new files land in the rank's folder."""
    bench.write("data/x.rec", "payload")
    bench.write("src/net.py", "WIDTH = 8\n")
    bench.write("sub/helper.py", "")
    bench.write(
        "train.py",
        "import os, sys\nfrom pathlib import Path\nfrom src.net import WIDTH\n"
        "assert open('data/x.rec').read() == 'payload'\n"
        "assert (Path(__file__).parent / 'data' / 'x.rec').exists()\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--lr', '0.1'], sys.argv\n"
        "Path('out.txt').write_text(str(WIDTH))\n",
    )
    done = bench.mslaunch("train", "-n", "2", "--", "--lr", "0.1")
    assert done.returncode == 0, done.stdout
    assert (bench.work(1) / "out.txt").read_text() == "8"
    assert not (bench.folder / "out.txt").exists()


def test_paths_outside_the_job_are_made_absolute(bench: Bench) -> None:
    """`../data` exists from the submit folder but not from rank_R, so the script is given the absolute path."""
    (bench.folder.parent / "data").mkdir()
    (bench.folder.parent / "data" / "x").write_text("payload")
    bench.write("cfg.yaml", "data_dir: ../data\n")
    bench.write(
        "train.py",
        "import json, os, sys\ncfg = json.load(open(os.environ['MSLAUNCH_CONFIG']))\n"
        "print(open(sys.argv[-1] + '/x').read(), open(cfg['data_dir'] + '/x').read())\n",
    )
    done = bench.mslaunch("train", "-n", "1", "--config", "cfg.yaml", "--", "--data", "../data")
    assert "[rank 0] payload payload" in done.stdout
    assert f"../data is given to the script as {bench.folder.parent / 'data'}" in done.stdout


def test_a_script_elsewhere_brings_its_own_folder(bench: Bench) -> None:
    """The job's folder is the current one if it contains the script, else the script's."""
    other = bench.folder.parent / "other"
    other.mkdir()
    (other / "net.py").write_text("X = 1\n")
    (other / "go.py").write_text("from net import X\nprint('x', X)\n")
    done = bench.mslaunch("train", "-n", "1", "../other/go.py")
    assert "[rank 0] x 1" in done.stdout
    bench.write("pkg/go.py", "import os\nprint(os.path.exists('here.txt'))\n")
    bench.write("here.txt", "")
    assert "[rank 0] True" in bench.mslaunch("train", "-n", "1", "pkg/go.py").stdout


def test_ranks_can_run_in_the_submit_folder(bench: Bench) -> None:
    """launch.cwd: submit is for scripts that insist on it."""
    bench.write("cfg.yaml", "launch:\n  cwd: submit\n  config_arg: null\n")
    bench.write("train.py", "import os\nprint(os.getcwd())\n")
    assert f"[rank 0] {bench.folder}\n" in bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").stdout


def test_editing_the_source_does_not_disturb_a_running_job(bench: Bench) -> None:
    """A module imported late is the one of the launch."""
    bench.write("late.py", "VALUE = 'old'\n")
    bench.write(
        "train.py",
        "import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\nimport late\nprint(late.VALUE)\n",
    )
    process = bench.start("train", "-n", "1")
    wait_for(lambda: bench.runs.exists() and (bench.latest / "rank_0" / "env.log").exists(), "the rank to start")
    bench.write("late.py", "VALUE = 'new'\n")
    (bench.work(0) / "go").touch()
    assert "[rank 0] old" in process.communicate(timeout=60)[0]


def test_the_script_is_given_the_effective_configuration(bench: Bench) -> None:
    """--config_path names a YAML with --set applied and device_num filled in, without the launcher's keys."""
    bench.write("cfg.yaml", "lr: 0.1\ndevice_num: 1\nlaunch:\n  script: go.py\n  workers: 2\n")
    bench.write("go.py", "import sys\nprint(open(sys.argv[1].removeprefix('--config_path=')).read())\n")
    done = bench.mslaunch("train", "--config", "cfg.yaml", "--set", "lr=0.5")
    assert "[rank 0] lr: 0.5\n[rank 0] device_num: 2\n" in done.stdout
    assert "launch" not in bench.log(0)


def test_secrets_reach_the_ranks_and_nothing_else(bench: Bench) -> None:
    """A value taken from the environment is in no file of the run; what looks like a secret is masked in env.log."""
    bench.write("train.py", "import os, hashlib\nprint(len(os.environ['MY_THING']), len(os.environ['APP_TOKEN']))\n")
    done = bench.mslaunch(
        "train", "-n", "1", "--env", "MY_THING", "--env", "PLAIN=1", MY_THING="hush-hush-42", APP_TOKEN="tok-99-tok"
    )
    assert "[rank 0] 12 10" in done.stdout
    assert {bench.environment(0)[name] for name in ("MY_THING", "APP_TOKEN")} == {"***"}
    assert bench.environment(0)["PLAIN"] == "1"
    for path in bench.latest.rglob("*"):
        if path.is_file():
            assert b"hush-hush-42" not in path.read_bytes(), path


def test_variables_of_another_launcher_are_dropped_and_said(bench: Bench) -> None:
    """A shell in a pod or under mpirun does not confuse the ranks."""
    bench.write("train.py", PRINT_ENV)
    done = bench.mslaunch(
        "train", "-n", "1", "--tail", "none", MS_ROLE="MS_SCHED", OMPI_COMM_WORLD_RANK="7", RANK_TABLE_FILE="/x"
    )
    assert "not passed on to the ranks" in done.stdout
    assert "MS_ROLE, OMPI_COMM_WORLD_RANK, RANK_TABLE_FILE" in done.stdout
    seen = json.loads(bench.log(0))
    assert seen["MS_ROLE"] == "MS_WORKER"
    assert not {"OMPI_COMM_WORLD_RANK", "RANK_TABLE_FILE"} & set(seen)


@pytest.mark.parametrize("size", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_launch_that_mpirun_started_twice_is_refused(bench: Bench, size: str) -> None:
    """Each would run the whole job; one process, and a rank that launches, are not refused."""
    bench.write("train.py", "print('here')\n")
    done = bench.mslaunch("train", "-n", "2", **{size: "2"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "Leave mpirun out, and give --workers N" in done.stderr
    assert bench.mslaunch("train", "-n", "2", "--dry-run", **{size: "1"}).returncode == 0
    inside = {size: "2", "MSLAUNCH_RUN_DIR": str(bench.folder / "outer")}
    assert bench.mslaunch("train", "-n", "2", "--dry-run", **inside).returncode == 0


def test_a_dry_run_shows_a_job_for_devices_that_are_not_here(bench: Bench) -> None:
    """A login node has none: the plan says so, and the launch itself is refused."""
    bench.write("train.py", "print('here')\n")
    bench.write("cfg.yaml", "device_target: Ascend\n")
    shown = bench.mslaunch("train", "-n", "2", "--config", "cfg.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "it cannot be started here: " in shown.stdout
    assert "2 ranks" in shown.stdout
    assert bench.mslaunch("train", "-n", "2", "--config", "cfg.yaml").returncode == 3


def test_cores_are_bound(bench: Bench) -> None:
    """Each rank may run on its share only, and its threads match it."""
    bench.write("train.py", "import os\nprint(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n")
    assert bench.mslaunch("train", "-n", "2", "--bind-cores").returncode == 0
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // 2)
    assert bench.log(0) == f"{cores[:each]} {each}\n"
    assert bench.log(1) == f"{cores[each : 2 * each] or cores[:1]} {each}\n"


def test_setup_gives_its_environment_to_the_ranks(bench: Bench) -> None:
    """What `source set_env.sh` exports is there, and a set-up that fails starts nothing."""
    bench.write("env.sh", "export ASCEND_HOME='/opt/a b'\n")
    bench.write("cfg.yaml", f"launch:\n  setup: source {bench.folder}/env.sh\n")
    bench.write("train.py", "import os\nprint(os.environ['ASCEND_HOME'])\n")
    assert "[rank 0] /opt/a b\n" in bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").stdout
    bench.write("cfg.yaml", "launch:\n  setup: echo no driver >&2; false\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == 3
    assert "launch.setup failed with code 1" in done.stdout
    assert "no driver" in done.stdout
    assert not (bench.latest / "rank_0").exists()


def test_a_script_need_not_be_python(bench: Bench) -> None:
    """An executable is run as it is, with the same folder, variables and log."""
    bench.write("go.sh", '#!/bin/sh\necho "$RANK_ID of $RANK_SIZE in $(basename "$PWD") with $1"\n').chmod(0o755)
    done = bench.mslaunch("train", "-n", "2", "go.sh", "--", "x y")
    assert done.returncode == 0, done.stdout
    assert bench.log(1) == "1 of 2 in work with x y\n"
    bench.write("plain.sh", "echo never\n")
    done = bench.mslaunch("train", "-n", "1", "plain.sh")
    assert done.returncode == 126
    assert "Make it executable" in done.stdout


def test_classes_of_the_script_survive_spawned_processes(bench: Bench) -> None:
    """multiprocessing finds __main__ as it would under plain Python."""
    bench.write(
        "train.py",
        "import multiprocessing as mp\nclass Item:\n    value = 3\n\ndef work(item): return item.value + 1\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [Item()]))\n",
    )
    assert "[rank 0] [4]" in bench.mslaunch("train", "-n", "1").stdout


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("raise ValueError('loss is NaN')", 1, "ValueError: loss is NaN"),
        ("import sys; sys.exit(7)", 7, "exited with code 7"),
        ("import os; os._exit(9)", 9, "exited with code 9"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("import faulthandler; faulthandler._sigsegv()", 139, "was killed by SIGSEGV"),
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_the_first_failing_rank_is_named_and_gives_the_exit_code(
    bench: Bench, body: str, code: int, words: str
) -> None:
    """The others, which would wait for a minute, are stopped; the record says who failed and who was a victim."""
    bench.write("train.py", f"import os, time\nif os.environ['RANK_ID'] == '1':\n    {body}\ntime.sleep(60)\n")
    done = bench.mslaunch("train", "-n", "3")
    assert done.returncode == code, done.stdout
    assert f"mslaunch: rank 1 on localhost: {words}; stopping 2 other ranks" in done.stdout
    assert "First to fail: rank 1, host localhost, device 1" in done.stdout
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["exit_code"], verdict["victims"]) == (1, code, [0, 2])
    assert all(rank["ended"] for rank in bench.record()["ranks"])


def test_a_traceback_shows_the_users_lines_only(bench: Bench) -> None:
    """The exception is captured without a change to the script, and printed as Python would."""
    bench.write("train.py", "def step():\n    return 1 / 0\n\nstep()\n")
    assert bench.mslaunch("train", "-n", "1").returncode == 1
    error = json.loads((bench.latest / "rank_0" / "error.json").read_text())
    assert (error["rank"], error["type"], error["message"]) == (
        0,
        "ZeroDivisionError",
        "ZeroDivisionError: division by zero",
    )
    frames = [line for line in error["traceback"].splitlines() if line.strip().startswith("File")]
    assert [frame.split("/")[-1] for frame in frames] == [
        'train.py", line 4, in <module>',
        'train.py", line 2, in step',
    ]
    assert bench.log(0).strip() == error["traceback"].strip()


def test_a_syntax_error_is_shown_as_python_shows_it(bench: Bench) -> None:
    """It is the script's failure, with file and line."""
    bench.write("train.py", "x = (\n")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 1
    assert "SyntaxError: '(' was never closed" in done.stdout
    assert 'job/train.py", line 1' in done.stdout


def test_the_live_line_shows_progress_in_a_terminal(bench: Bench) -> None:
    """In a terminal there is one line with ranks, step, loss and speed; elsewhere there is none."""
    bench.write(
        "train.py",
        "import os, time\nstep = 0\nwhile not os.path.exists(os.environ['SEEN']):\n    step += 1\n"
        "    if os.environ['RANK_ID'] == '0': print(f'epoch: 1 step: {step}, loss is 0.5', flush=True)\n"
        "    time.sleep(0.1)\n",
    )
    typescript, seen = bench.folder.parent / "typescript", bench.folder.parent / "seen"
    env = {**bench.env, "TERM": "xterm", "SEEN": str(seen)}
    command = ["script", "-qefc", f"{MSLAUNCH} train -n 2", str(typescript)]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=bench.folder, env=env, text=True, stdin=nothing, stdout=nothing)
    bench.started.append(process)
    line = rb"\r2/2 ranks up \| epoch 1 step \d+ \| loss 0\.5 \| [\d.]+ steps/s \| "
    wait_for(lambda: typescript.exists() and re.search(line, typescript.read_bytes()), "the whole line")
    seen.touch()
    assert process.wait(60) == 0
    assert "\x1b" not in bench.mslaunch("train", "-n", "2", SEEN=str(seen)).stdout


def test_a_lot_of_output_loses_no_line(bench: Bench) -> None:
    """The log is whole, and the console keeps its memory bounded by lagging behind the file."""
    bench.write("train.py", "for i in range(200000): print('line', i, 'x' * 50)\n")
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 0
    assert bench.log(0).splitlines() == [f"line {i} {'x' * 50}" for i in range(200000)]
    assert f"[rank 0] line 199999 {'x' * 50}" in done.stdout


def test_code_runs_from_a_folder_with_odd_characters(tmp_path: Path, bench: Bench) -> None:
    """Spaces, quotes and dollars in paths are only characters."""
    odd = tmp_path / "it's a $HOME; folder"
    odd.mkdir()
    bench.folder = odd
    bench.write("train.py", "import sys\nprint(sys.argv[1:])\n")
    done = bench.mslaunch("train", "-n", "1", "train.py", "a b", "$HOME", "it's")
    assert "[rank 0] ['a b', '$HOME', \"it's\"]" in done.stdout
