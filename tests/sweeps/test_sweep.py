"""`mslaunch sweep` on this machine: combinations as runs of their own, stopped, resumed and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mslaunch
from mslaunch.shared.guard import processes_with
from tests.conftest import MSLAUNCH, Bench, wait_for

CONFIG = "lr: 1.0\nseed: 1\nlaunch: {grace: 2}\n"
TRAIN = """import json, os, sys, time
config = json.load(open(os.environ["MSLAUNCH_CONFIG"]))
print(f"epoch: 1 step: 2, loss is {config['lr'] * config['seed']}")
"""
FAILS = TRAIN + "if config['seed'] == 2 and not os.path.exists('{mended}'): sys.exit(7)\n"
SLEEP = TRAIN + "print('asleep', flush=True)\ntime.sleep(100)\n"


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.write("cfg.yaml", CONFIG)
    bench.write("train.py", TRAIN)
    return bench


def sweep(*more: str) -> tuple[str, ...]:
    return ("sweep", "--config", "cfg.yaml", "--workers", "1", "--run-id", "s", *more)


def states(bench: Bench) -> dict[str, str]:
    """The state of each run of the sweep, by its id."""
    found = {path.parent.name: json.loads(path.read_text()) for path in (bench.runs / "s").glob("*/run.json")}
    return {run_id: record["state"] for run_id, record in sorted(found.items()) if run_id != "latest"}


def asleep(bench: Bench, count: int) -> Any:
    logs = [path for path in (bench.runs / "s").glob("[0-9]*/rank_0/log.txt") if "asleep" in path.read_text()]
    return logs if len(logs) >= count else None


def test_every_combination_is_a_run_of_its_own(job: Bench) -> None:
    """In the order typed, in the sweep's folder, with a line for each start and end and a table of results."""
    done = job.mslaunch(*sweep("--set", "lr=0.1,0.01", "--set", "seed=1..3", "--at-once", "2"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mslaunch: sweep s: 6 runs, 2 at a time; in ")
    assert "run 5/6 lr=0.01 seed=2: started as s/5" in lines
    assert any(line.startswith("run 5/6 lr=0.01 seed=2: succeeded after ") for line in lines)
    assert "loss is" not in done.stdout
    table = [line.split() for line in lines[-7:]]
    assert table[0] == ["lr", "seed", "STATE", "CODE", "TIME", "LOSS", "RUN"]
    assert [(row[0], row[1], row[2], row[-2], row[-1]) for row in table[1:]] == [
        (lr, str(seed), "succeeded", f"{float(lr) * seed:.5g}", f"s/{number}")
        for number, (lr, seed) in enumerate(((lr, seed) for lr in ("0.1", "0.01") for seed in (1, 2, 3)), 1)
    ]
    made = json.loads((job.runs / "s/sweep.json").read_text())
    assert made["schema_version"]
    assert made["runs"][4]["run_id"] == "5"
    assert made["runs"][4]["values"] == {"lr": 0.01, "seed": 2}


def test_runs_of_a_sweep_are_read_like_any_other(job: Bench) -> None:
    """`ps` shows them as SWEEP/RUN; that name, its beginning and the path are taken by `status` and `logs`."""
    job.mslaunch(*sweep("--set", "seed=1..2", "--at-once", "1"))
    job.mslaunch("train", "--config", "cfg.yaml", "--run-id", "other")
    assert [line.split()[0] for line in job.mslaunch("ps").stdout.splitlines()] == ["RUN", "s/1", "s/2", "other"]
    assert [run["name"] for run in json.loads(job.mslaunch("ps", "--json").stdout)] == ["s/1", "s/2", "other"]
    assert job.mslaunch("status", "s/2").stdout.startswith("s/2: succeeded")
    assert "loss is 2.0" in job.mslaunch("logs", "s/2").stdout
    assert "loss is 2.0" in job.mslaunch("logs", str(job.runs / "s/2")).stdout
    ambiguous = job.mslaunch("status", "s")
    assert (ambiguous.returncode, "fits 2 runs (s/1, s/2)" in ambiguous.stderr) == (2, True)
    assert "a sweep. Name one of its runs, for example s/1" in job.mslaunch("status", "mslaunch-runs/s").stderr
    assert "neither a run" in job.mslaunch("status", "s/3").stderr
    compared = [json.loads(job.mslaunch("compare", *names, "--json").stdout) for names in (["s"], ["other", "s"])]
    assert [one["runs"] for one in compared] == [["s/1", "s/2"], ["other", "s/1", "s/2"]]
    assert compared[0]["config"]["differences"] == {"seed": [1, 2]}
    assert "expected two or more runs, got s/1." in job.mslaunch("compare", "s/1").stderr
    assert sorted(path.name for path in (job.runs / "s/2/code").iterdir()) == ["cfg.yaml", "train.py"]


def test_a_failing_run_does_not_stop_the_others(job: Bench) -> None:
    """The exit code is that of the first that failed; its line says why."""
    job.write("train.py", FAILS)
    done = job.mslaunch(*sweep("--set", "seed=1..3", "--at-once", "1"))
    assert done.returncode == 7
    assert "run 2/3 seed=2: failed after " in done.stdout
    assert " with code 7; rank 0: exited with code 7" in done.stdout
    assert states(job) == {"1": "succeeded", "2": "failed", "3": "succeeded"}


def test_fail_fast_stops_the_others_and_starts_no_more(job: Bench) -> None:
    """Runs that are under way are stopped; those that wait do not start."""
    job.write("train.py", FAILS.replace("sys.exit(7)", "sys.exit(7)\nif config['seed'] == 1: time.sleep(100)"))
    done = job.mslaunch(*sweep("--set", "seed=1..4", "--at-once", "2", "--fail-fast", "--json"))
    assert done.returncode == 7
    runs = json.loads(done.stdout)["runs"]
    assert [run["state"] for run in runs] == ["stopped", "failed", "not started", "not started"]
    assert [run["exit_code"] for run in runs] == [143, 7, None, None]


def test_json_has_what_the_table_has(job: Bench) -> None:
    """Values with their types, and the lines go to standard error."""
    done = job.mslaunch(*sweep("--set", "lr=0.5,2e0", "--set", "seed=3", "--json"))
    runs = json.loads(done.stdout)["runs"]
    assert [(run["values"], run["loss"], run["run"]) for run in runs] == [
        ({"lr": 0.5, "seed": 3}, 1.5, "s/1"),
        ({"lr": 2.0, "seed": 3}, 6.0, "s/2"),
    ]
    assert runs[0]["seconds"] > 0
    assert "run 1/2 lr=0.5: started" in done.stderr


def test_settings_of_the_launcher_can_be_swept(job: Bench) -> None:
    """`--set launch.key=…`, here the number of ranks."""
    done = subprocess.run(
        [MSLAUNCH, "sweep", "--config", "cfg.yaml", "--set", "launch.workers=1,2", "--json"],
        cwd=job.folder,
        env=job.env,
        capture_output=True,
        text=True,
    )
    worlds = [json.loads((Path(run["run_dir"]) / "run.json").read_text()) for run in json.loads(done.stdout)["runs"]]
    assert [record["world_size"] for record in worlds] == [1, 2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_runs_and_shows_the_table(job: Bench, number: int, code: int) -> None:
    """What is under way is stopped, nothing more starts."""
    job.write("train.py", SLEEP)
    running = job.start(*sweep("--set", "seed=1..4", "--at-once", "2"))
    wait_for(lambda: asleep(job, 2), "two runs to be under way")
    running.send_signal(number)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == code
    assert "stopping all runs" in output
    assert [line.split()[1] for line in output.splitlines()[-4:]] == ["stopped", "stopped", "not", "not"]
    assert states(job) == {"1": "stopped", "2": "stopped"}
    assert job.leftovers() == []


def test_a_second_signal_hurries(job: Bench) -> None:
    """Ranks that do not heed SIGTERM are ended without waiting for the grace period."""
    job.write("cfg.yaml", CONFIG.replace("grace: 2", "grace: 100"))
    job.write("train.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)
    running = job.start(*sweep("--set", "seed=1..2", "--at-once", "2"))
    wait_for(lambda: asleep(job, 2), "two runs to be under way")
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    while "stopping all runs" not in running.stdout.readline():
        pass
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=50)
    assert running.returncode == 130


def test_kill_9_leaves_nothing_and_what_is_missing_is_resumed(job: Bench) -> None:
    """Every rank ends; `--resume` runs what did not succeed, in new folders, with the same combinations."""
    job.write("train.py", SLEEP.replace("time.sleep(100)", "time.sleep(0 if config['seed'] == 1 else 100)"))
    running = job.start(*sweep("--set", "seed=1..3", "--at-once", "1"))
    wait_for(lambda: states(job).get("1") == "succeeded" and asleep(job, 2), "the second run to be under way")
    running.kill()
    running.communicate()
    wait_for(lambda: not job.leftovers(), "every process to end")
    assert "s/2  lost" in job.mslaunch("ps").stdout
    job.write("train.py", TRAIN)
    refused = job.mslaunch("sweep", "--resume", "s", "--set", "seed=1..4")
    assert refused.returncode == 2
    assert "s was started with other --set values" in refused.stderr
    listed = job.mslaunch("sweep", "--resume", "s", "--dry-run")
    assert "sweep s: 2 runs (1 of 3 have succeeded)" in listed.stdout
    again = job.mslaunch("sweep", "--resume", "--run-id", "s", "--set", "seed=1..3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "run 1/3" not in again.stdout
    assert [line.split()[-1] for line in again.stdout.splitlines()[-3:]] == ["s/1", "s/2.2", "s/3"]
    assert states(job) == {"1": "succeeded", "2": "running", "2.2": "succeeded", "3": "succeeded"}
    assert job.mslaunch("sweep", "--resume", "s").returncode == 0


def test_a_sweep_that_is_under_way_is_neither_resumed_nor_started_twice(job: Bench) -> None:
    """Both are refused with a sentence; `mslaunch stop` ends one run alone, or the whole sweep."""
    job.write("train.py", SLEEP)
    running = job.start(*sweep("--set", "seed=1..3", "--at-once", "2"))
    wait_for(lambda: asleep(job, 2), "two runs to be under way")
    resumed = job.mslaunch("sweep", "--resume", "s")
    assert (resumed.returncode, "s is still under way" in resumed.stderr) == (2, True)
    twice = job.mslaunch(*sweep("--set", "seed=1..3"))
    assert (twice.returncode, "a run called s is there already" in twice.stderr) == (2, True)
    assert job.mslaunch("stop", "s/1").stdout == "s/1: stopped\n"
    wait_for(lambda: asleep(job, 3), "the third run to take its place")
    assert running.poll() is None
    assert job.mslaunch("stop", "s").stdout == "s: stopped\n"
    running.communicate(timeout=30)
    assert running.returncode == 143
    assert states(job) == {"1": "stopped", "2": "stopped", "3": "stopped"}


def test_stacks_are_taken_of_a_run_in_a_sweep(job: Bench) -> None:
    """The signal goes to the sweep's process, which passes it on."""
    job.write("train.py", SLEEP)
    job.start(*sweep("--set", "seed=1..2", "--at-once", "2"))
    wait_for(lambda: asleep(job, 2), "two runs to be under way")
    assert "rank 0" in job.mslaunch("stacks", "s/2").stdout


def test_a_detached_sweep_goes_on_by_itself(job: Bench) -> None:
    """Its lines and its table are in launcher.log."""
    done = job.mslaunch(*sweep("--set", "seed=1..2", "--detach"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("s goes on by itself.")
    log = job.runs / "s/launcher.log"
    wait_for(lambda: log.exists() and "RUN\n" in log.read_text(), "its table")
    assert states(job) == {"1": "succeeded", "2": "succeeded"}
    wait_for(lambda: not processes_with(f"PWD={job.folder}"), "its end")


def test_a_dry_run_lists_the_combinations_and_shows_one_plan(job: Bench) -> None:
    """Nothing is written or started."""
    done = job.mslaunch(*sweep("--set", "lr=0.1,0.01", "--dry-run"))
    assert done.returncode == 0, done.stderr
    assert "\n0.01  not started" in done.stdout
    assert "The plan of run 1/2 lr=0.1:" in done.stdout
    assert done.stdout.count("processes\n") == 1
    shown = json.loads(job.mslaunch(*sweep("--set", "lr=0.1,0.01", "--dry-run", "--json")).stdout)
    assert [run["values"] for run in shown["runs"]] == [{"lr": 0.1}, {"lr": 0.01}]
    assert shown["plan"]["run_id"] == "1"
    assert not job.runs.exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "nothing to sweep"),
        (("--set", "lr=1,"), 2, "--set lr=1,: a value is empty"),
        (("--set", "lr=0.1", "--set", "seed=1..99999"), 2, "99,999 combinations"),
        (("--set", "lrr=0.1,0.2"), 2, "mslaunch: --set lrr: cfg.yaml has no key 'lrr'; did you mean 'lr'?"),
        (("--set", "seed=1,x,-1"), 2, "mslaunch: run 2/3 seed=x: cfg.yaml:2: seed: "),
        (("--set", "launch.method=dynamic,horovod"), 2, "run 2/2 launch.method=horovod: --set launch.method: "),
        (("--set", "launch.workers=1,2"), 2, "--workers and --set launch.workers: the one outweighs"),
        (("--set", "lr=1,2", "nix.py"), 2, "mslaunch: nix.py: no such script"),
        (("--set", "lr=1,2", "--runs-dir", "train.py"), 3, "train.py: cannot write the run's folder"),
        (("--set", "lr=1,2", "--runs-dir", "/proc/nix"), 3, "/proc/nix: cannot write the run's folder"),
        (("--set", "lr=1,2", "--at-once", "0"), 2, "--at-once 0"),
        (("--set", "lr=1,2", "--at-once", "2", "--master-port", "29999"), 2, "with --master-port runs would share it"),
        (("--set", "lr=1,2", "--tail", "all"), 2, "a sweep shows no output of ranks"),
        (("--resume", "nix"), 2, "no sweeps here yet"),
    ],
)
def test_a_wrong_sweep_starts_nothing_and_leaves_nothing(
    job: Bench, args: tuple[str, ...], code: int, words: str
) -> None:
    """All combinations are planned first: one sentence, exit code 2 or 3, no folder."""
    before = sorted(job.folder.iterdir())
    done = job.mslaunch(*sweep(*args))
    assert done.returncode == code, done.stdout
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(job.folder.iterdir()) == before


def test_a_full_disk_at_the_start_leaves_nothing(job: Bench, tmp_path: Path) -> None:
    """sweep.json cannot be written: the sentence says so."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("a small disk of one's own needs root")
    try:
        (small / "filler").write_bytes(b"x" * 4096)
        done = job.mslaunch(*sweep("--set", "seed=1..200", "--runs-dir", str(small)))
        assert done.returncode == 3
        assert "the disk is full" in done.stderr
        assert [path.name for path in small.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_config_from_a_pipe_is_read_once(job: Bench) -> None:
    """All runs have it."""
    line = f"{MSLAUNCH} sweep --script train.py --config <(echo '{{lr: 1, seed: 1}}') --set seed=1..3 --json"
    done = subprocess.run(["bash", "-c", line], cwd=job.folder, env=job.env, capture_output=True, text=True)
    assert [run["loss"] for run in json.loads(done.stdout)["runs"]] == [1, 2, 3]


def test_a_program_gets_values_and_results(job: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """mslaunch.sweep with a Job or its settings; a failing run is a result, not an exception."""
    monkeypatch.chdir(job.folder)
    job.write("train.py", FAILS)
    settings = {"config": "cfg.yaml", "workers": 1, "values": {"lr": 0.5}}
    found = mslaunch.sweep(settings, values={"seed": range(1, 4)}, at_once=2)
    assert [values for values, _ in found] == [{"lr": 0.5, "seed": seed} for seed in (1, 2, 3)]
    assert [(result.state, result.exit_code) for _, result in found] == [
        ("succeeded", 0),
        ("failed", 7),
        ("succeeded", 0),
    ]
    assert found[2][1].path.parent.parent == job.runs


DEVICES = """import os, time
print("epoch: 1 step: 1, loss is", os.environ["RANK_ID"], "devices", os.environ["DEVICE_ID"], flush=True)
time.sleep(1)
"""
FAKE_DEVICES = """set -e
mount -t tmpfs none {place}
for one in null zero full random urandom tty; do touch {place}/$one; mount --bind /dev/$one {place}/$one; done
ln -s /proc/self/fd {place}/fd
mkdir {place}/shm
touch {place}/davinci0 {place}/davinci1 {place}/davinci2 {place}/davinci3 {place}/davinci5
mount --bind {place} /dev
exec "$@"
"""


def on_five_npus(bench: Bench, place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command where /dev has the files of NPUs 0, 1, 2, 3 and 5."""
    place.mkdir(exist_ok=True)
    words = ["unshare", "--mount", "sh", "-c", FAKE_DEVICES.format(place=place), "sh", MSLAUNCH, *args]
    done = subprocess.run(words, cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("a /dev of one's own needs root")
    return done


def devices_of(bench: Bench, run: str) -> tuple[int, ...]:
    return tuple(rank["device_id"] for rank in json.loads((bench.runs / "s" / run / "run.json").read_text())["ranks"])


def test_runs_at_a_time_have_devices_of_their_own(job: Bench, tmp_path: Path) -> None:
    """Five NPUs and two ranks a run: two runs at a time, on different devices, however many are asked for."""
    job.write("train.py", DEVICES)
    args = ("sweep", "--config", "cfg.yaml", "-n", "2", "--run-id", "s", "--set", "seed=1..3", "--json")
    shown = on_five_npus(job, tmp_path / "dev", *args, "--dry-run")
    assert json.loads(shown.stdout)["at_once"] == 2, shown.stderr
    done = on_five_npus(job, tmp_path / "dev", *args, "--at-once", "9")
    assert done.returncode == 0, done.stderr
    assert (devices_of(job, "1"), devices_of(job, "2")) == ((0, 1), (2, 3))
    lines = [line for line in done.stderr.splitlines() if line.startswith("run ")]
    assert ["started" in line for line in lines[:3]] == [True, True, False]


def test_devices_that_are_named_are_shared_out(job: Bench, tmp_path: Path) -> None:
    """--devices is what the sweep may use, --workers what a run needs; too few are refused as by train."""
    job.write("train.py", DEVICES)
    args = ("sweep", "--config", "cfg.yaml", "--run-id", "s", "--devices", "2,5", "--set", "seed=1..2")
    done = on_five_npus(job, tmp_path / "dev", *args, "-n", "1")
    assert done.returncode == 0, done.stderr
    assert (devices_of(job, "1"), devices_of(job, "2")) == ((2,), (5,))
    few = on_five_npus(job, tmp_path / "dev", *args, "--runs-dir", "other", "-n", "3")
    assert (few.returncode, "--workers says 3, but --devices (2,5) says 2" in few.stderr) == (2, True)


def test_runs_at_a_time_follow_the_cores(job: Bench) -> None:
    """On CPU: cores by ranks, at least one."""
    cores = len(os.sched_getaffinity(0))
    for workers in (1, cores, cores + 1):
        args = ("sweep", "--config", "cfg.yaml", "-n", str(workers), "--set", "seed=1..9", "--dry-run", "--json")
        assert json.loads(job.mslaunch(*args).stdout)["at_once"] == max(1, cores // workers)


def test_hosts_run_one_at_a_time(far: Bench) -> None:
    """Unless --at-once says otherwise; devices of hosts are never shared, unless the runs compute on CPUs."""
    far.write("cfg.yaml", "seed: 1\nlr: 1\n")
    far.write("train.py", TRAIN + "time.sleep(1)\n")
    args = ("sweep", "--config", "cfg.yaml", "--hosts", "n1:1,n2:1", "--set", "seed=1..2", "--json")
    for more, started in (((), [True, False]), (("--at-once", "2"), [True, True])):
        done = far.mslaunch(*args, *more)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("run ")]
        assert ["started" in line for line in lines[:2]] == started
    assert [run["loss"] for run in json.loads(done.stdout)["runs"]] == [1, 2]


def test_a_host_that_is_not_ready_fails_its_runs(far: Bench) -> None:
    """Each run tells why it could not begin; nothing is left of it."""
    far.write("cfg.yaml", "seed: 1\n")
    done = far.mslaunch("sweep", "--config", "cfg.yaml", "--hosts", "n1:1,nowhere:1", "--set", "seed=1..2", "--json")
    assert done.returncode == 3
    runs = json.loads(done.stdout)["runs"]
    assert [(run["state"], run["exit_code"], "nowhere" in run["why"]) for run in runs] == [("failed", 3, True)] * 2
    assert not Path(runs[0]["run_dir"]).exists()


def test_a_sweep_of_a_program_is_stopped_without_a_signal_to_it(job: Bench) -> None:
    """`mslaunch stop SWEEP` asks by a file: the program goes on, and gets the results."""
    job.write("train.py", SLEEP)
    job.write(
        "program.py",
        "import mslaunch\n"
        "found = mslaunch.sweep({'config': 'cfg.yaml', 'run_id': 's'}, values={'seed': range(1, 4)}, at_once=2)\n"
        "print([result.state for _, result in found])\n",
    )
    words = [sys.executable, "program.py"]
    program = subprocess.Popen(words, cwd=job.folder, env=job.env, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: asleep(job, 2), "two runs to be under way")
        assert job.mslaunch("stop", "s").stdout == "s: stopped\n"
        output, _ = program.communicate(timeout=30)
    finally:
        program.kill()
    assert (program.returncode, output) == (0, "['stopped', 'stopped', 'not started']\n")
