"""The Python API with a Slurm of our own: jobs that are submitted, and jobs inside an allocation."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import TIMEOUT, Bench

SETTINGS = "transport='slurm', nodes=2, workers=4"


def run_program(site: Bench, text: str, *before: str) -> str:
    """Run a program that uses the API; return what it printed."""
    site.write("program.py", "import mslaunch\n" + text)
    done = subprocess.run(
        [*before, sys.executable, "program.py"],
        cwd=site.folder,
        env=site.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_is_submitted_and_waited_for(site: Bench) -> None:
    """start() returns a run of Slurm's; events and result are those of any other run."""
    code = (
        f"with mslaunch.Job('train.py', {SETTINGS}).start() as run:\n"
        "    print(run.queue_job.split()[:2])\n"
        "    print(sorted(e.rank for e in run.events() if isinstance(e, mslaunch.RankEnded)))\n"
        "    print(run.wait().state)\n"
    )
    assert run_program(site, code) == "['Slurm', 'job']\n[0, 1, 2, 3]\nsucceeded\n"


def test_settings_that_have_no_flag_reach_a_submitted_job(site: Bench) -> None:
    """The launcher in the job reads them: a text of several lines, a mapping, a list, a number, false."""
    site.write("train.py", "import os\nprint(os.environ['FROM_SETUP'], os.sched_getaffinity(0))\n")
    code = (
        f"setup = 'true # not this\\nexport FROM_SETUP=\"it: $((1 + 1))\"'\n"
        f"job = mslaunch.Job('train.py', {SETTINGS}, setup=setup, core_map={{0: '0', 1: '1'}}, tags=['a', 'b'],\n"
        "    metrics=False, grace=3, share_devices=False, on_end='cat > ended.json')\n"
        "print(job.run().state)\n"
    )
    assert run_program(site, code) == "succeeded\n"
    assert [site.log(rank) for rank in (0, 1)] == ["it: 2 {0}\n", "it: 2 {1}\n"]
    assert site.record()["state"] == "succeeded"
    assert (site.folder / "ended.json").exists()


def test_leaving_the_block_cancels_a_submitted_job(site: Bench) -> None:
    """As it stops any other run."""
    site.write("train.py", "import time\nprint('ready', flush=True)\ntime.sleep(100)\n")
    code = (
        f"with mslaunch.Job('train.py', {SETTINGS}).start() as run:\n"
        "    print(type(next(run.events())).__name__)\n"
        "print(run.state)\n"
    )
    assert run_program(site, code) == "RankStarted\nstopped\n"


def test_a_function_runs_in_a_submitted_job(site: Bench) -> None:
    """The script of the job is part of the installation, and the function lies in the run's folder."""
    code = (
        "def where():\n    import os\n    return os.environ['RANK_ID'], os.environ['MSLAUNCH_HOST']\n"
        "print(mslaunch.launch(where, workers=4, settings={'transport': 'slurm', 'nodes': 2}))\n"
    )
    assert run_program(site, code) == "[('0', 'n1'), ('1', 'n1'), ('2', 'n2'), ('3', 'n2')]\n"


def test_a_program_inside_an_allocation_is_the_launcher(site: Bench) -> None:
    """The launcher is a thread of the program, and the ranks run in a step of the allocation."""
    code = "result = mslaunch.Job('train.py', workers=4).run()\nprint(result.state, [r.host for r in result.ranks])\n"
    printed = run_program(site, code, "salloc", "-Q", "-N", "2")
    assert printed == "succeeded ['n1', 'n1', 'n2', 'n2']\n"
    assert site.record()["launcher"]["in_process"] is True
