"""Submitting to a real Slurm when something comes in between: signals, slow answers, odd bytes, other settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mslaunch.shared.guard import processes_with
from tests.beds.slurm_bed import SLURM, Slurm, job_of
from tests.beds.ssh_bed import HELLO, SLEEP
from tests.conftest import MSLAUNCH, Bench, wait_for

ONE = ("--transport", "slurm", "--nodes", "1", "--workers", "1")
HELD = "--sbatch-arg=--hold"


@pytest.fixture
def slow(site: Bench, tmp_path: Path) -> Bench:
    """A site where sbatch has the job in the queue, and answers once the file `answer` is there."""
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    answer = site.folder.parent / "answer"
    wrapper.write_text(
        f'#!/bin/sh\n/usr/bin/sbatch "$@"\ncode=$?\nuntil [ -e {answer} ]; do sleep 0.05; done\nexit $code\n'
    )
    wrapper.chmod(0o755)
    site.env["PATH"] = f"{wrapper.parent}:{site.env['PATH']}"
    return site


def answer(slow: Bench) -> None:
    (slow.folder.parent / "answer").touch()


def queued(slurm: Slurm, what: str = "%T") -> list[str]:
    return slurm.run("squeue", "-h", "-o", what).stdout.split()


def test_ctrl_c_while_sbatch_has_not_answered_cancels_the_job(slow: Bench, slurm: Slurm) -> None:
    watching = slow.start("train", *ONE, HELD)
    wait_for(lambda: queued(slurm), "the job to be in the queue")
    watching.send_signal(signal.SIGINT)
    answer(slow)
    assert watching.wait(timeout=60) == 130
    assert queued(slurm) == []
    assert slow.record()["state"] == "stopped"
    assert slow.record()["ended"]


def test_a_job_whose_submitter_was_killed_is_found_by_its_name(slow: Bench, slurm: Slurm) -> None:
    """Its id was never written down; it has the run's name."""
    watching = slow.start("train", *ONE, HELD)
    wait_for(lambda: queued(slurm), "the job to be in the queue")
    watching.kill()
    watching.wait()
    answer(slow)
    assert not (slow.latest / "slurm_job").exists()
    assert "queued" in slow.mslaunch("ps").stdout
    assert slow.mslaunch("stop").stdout.strip().endswith(": stopped")
    assert queued(slurm) == []


def test_a_job_of_another_user_is_not_taken_for_ones_own(site: Bench, slurm: Slurm) -> None:
    """It is newer, and has the run's name."""
    site.mslaunch("train", *ONE, HELD, "--detach", "--run-id", "same")
    mine = job_of(site)
    other = slurm.run("sbatch", "--uid=nobody", "--parsable", "--hold", "--job-name=same", "--chdir=/", "--wrap=true")
    try:
        assert int(other.stdout) > int(mine), other.stderr
        (site.latest / "slurm_job").unlink()
        assert "queued" in site.mslaunch("ps").stdout
        assert job_of(site) == mine
        assert site.mslaunch("stop").stdout.strip().endswith(": stopped")
        assert queued(slurm, "%i") == [other.stdout.strip()]
    finally:
        slurm.run("scancel", "--user=nobody")


def test_a_run_of_another_user_does_not_stand_as_ones_own_job(site: Bench, slurm: Slurm) -> None:
    """Its job is not known; that of the caller, of the same name, has been cancelled."""
    site.mslaunch("train", *ONE, HELD, "--detach", "--run-id", "same")
    slurm.run("scancel", job_of(site))
    (site.latest / "slurm_job").unlink()
    os.chown(site.latest.resolve(), 65534, 65534)
    assert [run["state"] for run in json.loads(site.mslaunch("ps", "--json").stdout)] == ["queued"]


def test_a_job_is_stopped_in_its_first_moments(site: Bench, slurm: Slurm) -> None:
    """Before its launcher listens to anything."""
    site.write("train.py", SLEEP)
    site.mslaunch("train", *SLURM, "--detach")
    wait_for(lambda: "RUNNING" in queued(slurm), "the job to start")
    assert site.mslaunch("stop").stdout.strip().endswith(": stopped")
    assert (site.record()["state"], site.record()["exit_code"]) == ("stopped", 143)
    wait_for(lambda: not site.leftovers(), "every process to end")


def test_a_warning_in_the_first_moments_does_no_harm(site: Bench, slurm: Slurm) -> None:
    """From the first line of the job's script on; before it, bash itself would end by the signal."""
    site.mslaunch("train", *SLURM, "--detach")
    wait_for(lambda: any(map(ignores_the_warning, processes_with(f"SLURM_JOB_ID={job_of(site)}"))), "the script")
    slurm.run("scancel", "--batch", "--signal=USR1", job_of(site))
    wait_for(lambda: site.record()["state"] in ("succeeded", "failed"), "its end")
    assert site.record()["state"] == "succeeded"


def ignores_the_warning(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def test_a_finished_job_that_is_wanted_again_is_queued(site: Bench, slurm: Slurm) -> None:
    """`scontrol requeue` by hand: the run waits for its next attempt; taken off the queue, it is what it was."""
    assert site.mslaunch("train", *ONE, "--requeue").returncode == 0
    slurm.run("scontrol", "requeuehold", job_of(site))
    wait_for(lambda: "queued" in site.mslaunch("status").stdout, "it to be queued")
    assert site.mslaunch("stop").stdout.strip().endswith(": succeeded")
    assert queued(slurm) == []


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--wait", "mslaunch follows the job itself"),
        ("-W", "mslaunch follows the job itself"),
        ("--test-only", "nothing would be submitted"),
        ("--array=0-1", "each member would be the same run"),
        ("-a0-1", "each member would be the same run"),
        ("--output=o.txt", "launcher.log in the run's folder"),
        ("-o o.txt", "launcher.log in the run's folder"),
        ("--error o.txt", "launcher.log in the run's folder"),
        ("--comment=it's", "a quote is missing"),
    ],
)
def test_options_that_would_break_it_are_refused(site: Bench, option: str, why: str) -> None:
    done = site.mslaunch("train", *ONE, f"--sbatch-arg={option}")
    assert done.returncode == 2
    assert f"--sbatch-arg {option}: " in done.stderr
    assert why in done.stderr
    assert not site.runs.exists()


@pytest.mark.parametrize("line", ["time: 30:00", "account: 0123", "partition: 7"])
def test_what_yaml_takes_for_a_number_wants_quotes(site: Bench, line: str) -> None:
    """30:00 is 1800 for YAML, and 1800 minutes for Slurm."""
    site.write("cfg.yaml", f"launch: {{transport: slurm, {line}}}\n")
    done = site.mslaunch("train", "--config", "cfg.yaml")
    assert done.returncode == 2
    assert f"cfg.yaml:1: {line.split(':', maxsplit=1)[0]}: write it in quotes" in done.stderr


def test_a_dry_run_shows_the_script_and_submits_nothing(site: Bench, slurm: Slurm) -> None:
    done = site.mslaunch("train", *ONE, "--time", "7", "--dry-run")
    assert "scripts/job.sbatch\n  #!/bin/bash\n" in done.stdout
    assert "  #SBATCH --time=7\n" in done.stdout
    assert queued(slurm) == []
    assert not site.runs.exists()


def test_quoted_time_is_slurm_s(site: Bench, slurm: Slurm) -> None:
    site.write("cfg.yaml", 'launch: {transport: slurm, time: "30:00", sbatch_args: [--hold]}\n')
    site.mslaunch("train", "--config", "cfg.yaml", "--detach")
    assert queued(slurm, "%l") == ["30:00"]


def test_what_is_typed_outranks_slurm_s_variables(site: Bench, slurm: Slurm) -> None:
    typed = ("--partition", "urgent", "--time", "3", HELD, "--detach")
    done = site.mslaunch("train", *ONE, *typed, SBATCH_PARTITION="main", SBATCH_TIMELIMIT="7")
    assert done.returncode == 0, done.stderr
    assert queued(slurm, "%P/%l") == ["urgent/3:00"]


def test_inside_a_job_options_for_submitting_are_refused(site: Bench) -> None:
    done = subprocess.run(
        ["salloc", "--quiet", "-N1", MSLAUNCH, "train", "--partition", "urgent"],
        cwd=site.folder,
        env=site.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--partition is for jobs that are submitted, and this is inside one" in done.stderr


def test_variables_for_the_ranks_do_not_change_the_launcher(site: Bench) -> None:
    """A PATH without Slurm's commands, and modules that would stand in for our own."""
    site.write("shadow/typer.py", "raise RuntimeError('shadow')\n")
    site.write("train.py", "import os\nprint(os.environ['PATH'], os.environ['PYTHONPATH'])\n")
    shadow = site.folder / "shadow"
    done = site.mslaunch("train", *ONE, "--env", "PATH=/nowhere", "--env", f"PYTHONPATH={shadow}")
    assert done.returncode == 0, done.stdout
    assert site.log(0) == f"/nowhere {shadow}\n"


def test_a_config_that_can_be_read_only_once_is_kept(site: Bench) -> None:
    site.write("train.py", "import os, json\nprint(json.load(open(os.environ['MSLAUNCH_CONFIG']))['epochs'])\n")
    command = f"{MSLAUNCH} train {' '.join(ONE)} --script train.py --config <(echo 'epochs: 3')"
    subprocess.run(["bash", "-c", command], cwd=site.folder, env=site.env, check=True, capture_output=True)
    assert site.log(0) == "3\n"


def test_arguments_need_not_be_text(site: Bench) -> None:
    site.write("train.py", "import os, sys\nprint(os.fsencode(sys.argv[1]))\n")
    done = subprocess.run(
        [os.fsencode(MSLAUNCH), b"train", *map(os.fsencode, ONE), b"train.py", b"\xff"], cwd=site.folder, env=site.env
    )
    assert done.returncode == 0
    assert site.log(0) == "b'\\xff'\n"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("-m", "pkg.train", "--lr", "1"), "pkg.train ['--lr', '1']"),
        (("python", "-O", "-m", "pkg.train"), "pkg.train []"),
        (("bash", "run.sh", "--", "x"), "shell -- x"),
    ],
)
def test_any_program_is_submitted(site: Bench, words: tuple[str, ...], printed: str) -> None:
    """The launcher in the job is given the same program."""
    site.write("pkg/__init__.py", "")
    site.write("pkg/train.py", "import sys\nprint(__spec__.name, sys.argv[1:])\n")
    site.write("run.sh", 'echo "shell $*"\n')
    done = site.mslaunch("train", *ONE, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.log(0) == f"{printed}\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_screen_that_cannot_show_it_does_not_matter(site: Bench, encoding: str) -> None:
    site.write("train.py", "import os\nos.write(1, bytes([0xc3, 0xbc, 10]))\n")
    with Path("/dev/full").open("w") as full:
        stdout = full if encoding == "utf-8" else subprocess.PIPE
        done = subprocess.run(
            [MSLAUNCH, "train", *ONE],
            cwd=site.folder,
            env={**site.env, "PYTHONIOENCODING": encoding},
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_path_that_slurm_cannot_write_to_is_refused(site: Bench) -> None:
    done = site.mslaunch("train", *ONE, "--runs-dir", "ba\\ck")
    assert done.returncode == 2
    assert "backslash" in done.stderr


def test_two_are_submitted_at_once(site: Bench) -> None:
    site.write("train.py", HELLO)
    both = [site.start("train", *ONE, "--run-id", name) for name in ("left", "right")]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert [site.record(name)["state"] for name in ("left", "right")] == ["succeeded"] * 2


@pytest.mark.usefixtures("needs_mpirun")
def test_mpirun_on_one_node(site: Bench) -> None:
    done = site.mslaunch("train", "--transport", "slurm", "--workers", "2", "--method", "mpirun")
    assert done.returncode == 0, done.stdout
    assert "rank 1 on n1" in site.log(1)


def test_a_list_of_runs_asks_slurm_once(site: Bench, slurm: Slurm, tmp_path: Path) -> None:
    """Two runs wait; squeue is called once for both, and where it does not answer it is not asked again."""
    for name in ("a", "b"):
        site.mslaunch("train", *ONE, HELD, "--detach", "--run-id", name)
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    for text, states in (("exec /usr/bin/squeue", ["queued", "queued"]), ("exit 1 #", ["queued", "queued"])):
        calls.write_text("")
        squeue = tmp_path / "bin/squeue"
        squeue.write_text(f'#!/bin/sh\necho x >> {calls}\n{text} "$@"\n')
        squeue.chmod(0o755)
        listed = site.mslaunch("ps", "--json", PATH=f"{squeue.parent}:{site.env['PATH']}")
        assert [run["state"] for run in json.loads(listed.stdout)] == states
        assert calls.read_text() == "x\n"
    assert len(queued(slurm)) == 2
