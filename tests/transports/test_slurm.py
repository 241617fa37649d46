"""Jobs on a real Slurm: submitted, followed, cancelled, queued again; and in an allocation that is there already."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.beds.slurm_bed import SLURM, Slurm, is_running, job_of
from tests.beds.ssh_bed import FAILS, HELLO, SLEEP
from tests.conftest import MSLAUNCH, Bench, wait_for


def allocated(site: Bench, *command: str, nodes: str = "-N2", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an allocation, as a user of salloc does."""
    return subprocess.run(
        ["salloc", "--quiet", *nodes.split(), *command],
        cwd=site.folder,
        env={**site.env, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_allocation_is_used_as_it_is(site: Bench) -> None:
    """Inside salloc nothing has to be said: hosts, their order and the number of ranks come from Slurm."""
    done = allocated(site, MSLAUNCH, "train", "--tail", "all", nodes="-N2 -n4 --ntasks-per-node=2")
    assert done.returncode == 0, done.stderr
    assert [rank["host"] for rank in site.record()["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert "[n2 rank 3] rank 3 on n2 device 1" in done.stdout
    assert site.record()["transport"] == "slurm"


def test_devices_are_those_that_slurm_gives(site: Bench) -> None:
    """SLURM_STEP_GPUS says which; without a number of ranks there is one for each."""
    done = allocated(site, MSLAUNCH, "train", nodes="-N2 --gres=gpu:2")
    assert done.returncode == 0, done.stderr
    assert [(rank["host"], rank["device_id"]) for rank in site.record()["ranks"]] == [
        ("n1", 0),
        ("n1", 1),
        ("n2", 0),
        ("n2", 1),
    ]


def test_devices_that_are_no_gpus_are_those_of_the_gres(site: Bench, slurm: Slurm) -> None:
    """Slurm sets no variable for them; another job has the first one of that node."""
    small = ("-N1", "-w", "n1", "--mem=100", "--gres=npu:1")
    slurm.run("sbatch", *small, "-o", "/dev/null", "--wrap", "sleep 30")
    wait_for(lambda: slurm.run("squeue", "-h", "-o", "%T").stdout.strip() == "RUNNING", "the other job")
    done = allocated(site, MSLAUNCH, "train", nodes=" ".join(small))
    assert done.returncode == 0, done.stderr
    assert [(rank["host"], rank["device_id"]) for rank in site.record()["ranks"]] == [("n1", 1)]


def test_fewer_nodes_than_the_allocation_has(site: Bench) -> None:
    done = allocated(site, MSLAUNCH, "train", "--nodes", "1", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert {rank["host"] for rank in site.record()["ranks"]} == {"n1"}
    more = allocated(site, MSLAUNCH, "train", "--nodes", "3", "--workers", "3")
    assert more.returncode == 2
    assert "3 are asked for, and this Slurm job has 2" in more.stderr


def test_local_is_local_inside_an_allocation_too(site: Bench) -> None:
    done = allocated(site, MSLAUNCH, "train", "--transport", "local", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert site.record()["transport"] == "local"


def test_check_asks_the_nodes_of_the_allocation(site: Bench) -> None:
    done = allocated(site, MSLAUNCH, "check", "--json")
    assert done.returncode == 0, done.stderr
    assert [(node["host"], node["ready"]) for node in json.loads(done.stdout)] == [("n1", True), ("n2", True)]


def test_srun_mslaunch_is_refused(site: Bench) -> None:
    """Each task would launch the whole job once more."""
    done = allocated(site, "srun", "-n2", MSLAUNCH, "train", "--workers", "2")
    assert done.returncode == 2
    assert "Leave srun out" in done.stderr
    assert not site.runs.exists()


def test_a_job_is_submitted_and_followed(site: Bench) -> None:
    done = site.mslaunch("train", *SLURM, "--tail", "3", "--partition", "main", "--time", "5", "train.py", "a b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"is Slurm job {job_of(site)}; Ctrl-C cancels it" in done.stdout
    assert "[n2 rank 3] rank 3 on n2 device 1" in done.stdout
    assert "succeeded after" in done.stdout
    assert site.record()["state"] == "succeeded"
    script = (site.latest / "scripts/job.sbatch").read_text()
    assert "#SBATCH --partition=main\n#SBATCH --time=5\n" in script
    assert script.endswith("-- 'a b'\n")


def test_the_script_stands_alone(site: Bench) -> None:
    """Submitted once more by hand it is a run of its own."""
    site.mslaunch("train", *SLURM)
    first = site.latest
    again = subprocess.run(
        ["sbatch", "--parsable", str(first / "scripts/job.sbatch")], env=site.env, capture_output=True, text=True
    ).stdout.strip()
    second = site.runs / f"{first.name}-{again}" / "run.json"
    wait_for(lambda: second.exists() and json.loads(second.read_text())["state"] == "succeeded", "the second run")
    assert site.record(first.name)["state"] == "succeeded"


def test_a_failure_is_told_with_rank_and_node(site: Bench) -> None:
    site.write("train.py", FAILS)
    done = site.mslaunch("train", *SLURM)
    assert done.returncode == 1
    assert "First to fail: rank 3, host n2, device 1 (exit code 1)" in done.stdout
    assert site.record()["verdict"]["host"] == "n2"


def test_json_is_all_that_stdout_holds(site: Bench) -> None:
    done = site.mslaunch("train", *SLURM, "--json")
    assert json.loads(done.stdout)["state"] == "succeeded"
    detached = site.mslaunch("train", *SLURM, "--json", "--detach", "--run-id", "alone")
    told = json.loads(detached.stdout)
    assert told["run_id"] == "alone"
    assert told["slurm_job"] == job_of(site)


def test_a_submitted_job_is_attached_to_while_it_is_queued(site: Bench) -> None:
    """Its hosts are known only when it starts; then it is shown to its end, with its exit code."""
    site.write("train.py", FAILS)
    site.mslaunch("train", *SLURM, "--detach", "--run-id", "q")
    done = site.mslaunch("attach", "q")
    assert done.returncode == site.record()["exit_code"] != 0, done.stdout
    assert "mslaunch: run q: 4 ranks" in done.stdout
    assert "run q failed after" in done.stdout
    assert "First to fail: rank" in done.stdout


def test_detached_then_watched_and_stopped(site: Bench) -> None:
    """ps, status, logs and stop treat it like any other run."""
    site.write("train.py", SLEEP)
    done = site.mslaunch("train", *SLURM, "--detach")
    assert done.returncode == 0
    assert f"Slurm job {job_of(site)}" in done.stdout
    wait_for(lambda: is_running(site), "all ranks")
    assert "running" in site.mslaunch("ps").stdout
    assert f"Slurm job {job_of(site)}" in site.mslaunch("status").stdout
    wait_for(lambda: "rank 3 on n2" in site.mslaunch("logs", "--rank", "3").stdout, "its output")
    stopped = site.mslaunch("stop")
    assert stopped.stdout.strip() == f"{site.latest.name}: stopped"
    assert site.record()["exit_code"] == 143
    wait_for(lambda: not site.leftovers(), "every process to end")


def test_ctrl_c_cancels_the_job(site: Bench, slurm: Slurm) -> None:
    site.write("train.py", SLEEP)
    watching = site.start("train", *SLURM)
    wait_for(lambda: is_running(site), "all ranks")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=60) == 130
    assert site.record()["state"] == "stopped"
    wait_for(lambda: not slurm.run("squeue", "-h").stdout, "the job to leave the queue")
    assert site.leftovers() == []


def test_the_job_outlives_whoever_submitted_it(site: Bench) -> None:
    """The launcher runs in the job; the process that follows it is not needed."""
    go = site.folder.parent / "go"
    site.write("train.py", HELLO + f"import time\nwhile not os.path.exists('{go}'): time.sleep(0.05)\n")
    watching = site.start("train", *SLURM)
    wait_for(lambda: is_running(site), "all ranks")
    watching.kill()
    watching.wait()
    go.touch()
    wait_for(lambda: "succeeded" in (site.latest / "launcher.log").read_text(), "the job's end")
    assert site.record()["state"] == "succeeded"


def test_a_launcher_that_is_killed_leaves_nothing(site: Bench) -> None:
    """Its srun's input ends, the agents end their ranks, and Slurm's word for it is what the run's state tells."""
    site.write("train.py", SLEEP)
    watching = site.start("train", *SLURM)
    now = wait_for(lambda: is_running(site), "all ranks")
    assert now["launcher"]["pid"] != watching.pid
    os.kill(now["launcher"]["pid"], signal.SIGKILL)
    out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 1
    assert f"Slurm job {job_of(site)} has ended" in out
    wait_for(lambda: not site.leftovers(), "every process to end")
    assert "failed" in site.mslaunch("status").stdout


def test_a_job_that_waits_is_queued_and_can_be_stopped(site: Bench) -> None:
    watching = site.start("train", *SLURM, "--sbatch-arg=--hold")
    wait_for(lambda: job_of(site) if (site.runs / "latest" / "slurm_job").exists() else "", "the job's id")
    assert site.mslaunch("status", "--json").stdout.count('"state": "queued"') == 1
    assert site.mslaunch("stop").returncode == 0
    out, _ = watching.communicate(timeout=60)
    assert "waits: JobHeldUser" in out
    assert watching.returncode != 0
    assert site.record()["state"] == "stopped"


def test_what_was_submitted_is_what_runs(site: Bench, slurm: Slurm) -> None:
    """Script and config may be edited while the job waits; it runs as it was submitted."""
    site.write("train.py", "import os, json\nprint(json.load(open(os.environ['MSLAUNCH_CONFIG']))['epochs'])\n")
    site.write("cfg.yaml", "epochs: 3\nlaunch: {workers: 2}\n")
    done = site.mslaunch("train", "--config", "cfg.yaml", "--transport", "slurm", "--detach", "--sbatch-arg=--hold")
    assert done.returncode == 0, done.stderr
    site.write("train.py", "print('edited')\n")
    site.write("cfg.yaml", "epochs: 99\nlaunch: {workers: 1}\n")
    slurm.run("scontrol", "release", job_of(site))
    wait_for(lambda: site.record()["state"] == "succeeded", "the job's end")
    assert (site.log(0), site.log(1)) == ("3\n", "3\n")


def test_a_secret_is_in_no_command_line_and_no_open_file(site: Bench) -> None:
    site.write("train.py", SLEEP + "print(os.environ['TOKEN'])\n")
    watching = site.start("train", *SLURM, "--env", "TOKEN", TOKEN="hush-4711")
    wait_for(lambda: is_running(site), "all ranks")
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "hush-4711" in line]
    holding = [path for path in site.latest.rglob("*") if path.is_file() and b"hush-4711" in path.read_bytes()]
    assert holding == []
    watching.send_signal(signal.SIGINT)
    watching.wait(timeout=60)


def test_a_secret_that_is_given_is_in_no_file_of_the_job(site: Bench) -> None:
    """By --env K=V or launch.env: Slurm carries it in the job's environment, and the ranks have it."""
    site.write("train.py", "import os\nprint(os.environ['K_TOKEN'], os.environ['DB_PASSWORD'])\n")
    site.write("cfg.yaml", "launch:\n  config_arg: null\n  env:\n    DB_PASSWORD: hush-4712\n")
    done = site.mslaunch("train", *SLURM, "-c", "cfg.yaml", "--env", "K_TOKEN=hush-4711")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.log(1).split()[-2:] == ["hush-4711", "hush-4712"]
    files = [
        path
        for path in site.latest.rglob("*")
        if path.is_file() and path.name not in ("log.txt", "launcher.log", "cfg.yaml")
    ]
    assert [path for path in files if b"hush-471" in path.read_bytes()] == []


def test_a_value_for_the_ranks_stays_in_a_file_of_ones_own(site: Bench) -> None:
    """`--env K=V` was typed for all to see; in the job it is read from the script, which nobody else may read."""
    site.write("train.py", "import os\nprint(os.environ['MODE'])\n")
    done = site.mslaunch("train", *SLURM, "--env", "MODE=fast one")
    assert done.returncode == 0
    assert site.log(3) == "fast one\n"
    script = site.latest / "scripts/job.sbatch"
    assert "export MSLAUNCH_ENV_MODE='fast one'\n" in script.read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    assert stat.S_IMODE(site.latest.stat().st_mode) == 0o700


WARNED = """
import os, signal, time
if os.environ["RANK_ID"] == "1":
    signal.signal(signal.SIGUSR1, lambda *_: print("warned", flush=True) or os._exit(0))
print("up", flush=True)
while not os.path.exists("{go}"):
    time.sleep(0.05)
"""


def test_the_warning_reaches_the_ranks_that_listen(site: Bench, slurm: Slurm) -> None:
    """SIGUSR1 would end a rank that does not handle it, so it gets none."""
    go = site.folder.parent / "go"
    site.write("train.py", WARNED.format(go=go))
    watching = site.start("train", *SLURM)
    wait_for(lambda: is_running(site) and all("up" in site.log(rank) for rank in range(4)), "all ranks")
    slurm.run("scancel", "--batch", "--signal=USR1", job_of(site))
    wait_for(lambda: "warned" in site.log(1), "the warning")
    go.touch()
    out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0, out
    assert "time limit close: SIGUSR1 forwarded" in out
    assert [site.log(rank) for rank in range(4)] == ["up\n", "up\nwarned\n", "up\n", "up\n"]


SAVES = """
import os, shutil, signal, sys, time
from pathlib import Path

def save(*_):
    print("saving", flush=True)
    Path("saved").mkdir(exist_ok=True)
    shutil.copy(os.environ["MODEL"], "saved/net-1_7.ckpt")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
attempt, resume = os.environ["MSLAUNCH_ATTEMPT"], os.environ.get("MSLAUNCH_RESUME")
print("attempt", attempt, "resumes", resume and Path(resume).name, flush=True)
time.sleep(60 if attempt == "0" else 0)
"""


def test_a_preempted_job_is_queued_again_and_resumes(site: Bench, slurm: Slurm) -> None:
    """Slurm gives its nodes to a job that matters more; the ranks save, and go on from there when their turn comes."""
    site.write("train.py", SAVES)
    site.write("cfg.yaml", "launch: {checkpoints: saved}\n")
    model = next((Path(__file__).parents[1] / "fixtures/checkpoints").rglob("*.ckpt"))
    watching = site.start("train", *SLURM, "--requeue", "--config", "cfg.yaml", MODEL=str(model))
    wait_for(lambda: is_running(site) and all("attempt 0" in site.log(rank) for rank in range(4)), "all ranks")
    seen = site.folder.parent / "seen"
    urgent = f"until [ -e {seen} ]; do sleep 0.1; done"
    slurm.run("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", urgent)
    wait_for(lambda: '"queued"' in site.mslaunch("status", "--json").stdout, "the job to be queued again")
    seen.touch()
    out, _ = watching.communicate(timeout=180)
    assert watching.returncode == 0, out
    assert "Slurm has queued the job again: attempt 2, resuming from net-1_7.ckpt" in out
    assert [site.log(rank) for rank in range(4)] == ["attempt 1 resumes net-1_7.ckpt\n"] * 4
    assert "saving" in (site.latest / "rank_0/log.0.txt").read_text()
    assert site.record()["attempts"][0]["exit_code"] == 143


def test_what_sbatch_refuses_is_told_and_leaves_nothing(site: Bench) -> None:
    done = site.mslaunch("train", *SLURM, "--partition", "nowhere")
    assert done.returncode == 3
    assert "sbatch refuses:" in done.stderr
    assert "invalid partition" in done.stderr.lower()
    assert list(site.runs.glob("2*")) == []


def test_a_job_whose_nodes_are_not_ready_says_so(site: Bench) -> None:
    """The check runs in the job; what it found is shown, kept on record, and is the exit code here too."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = site.mslaunch("train", *SLURM, "--master-port", str(port))
    assert done.returncode == 3, done.stdout
    assert f"mslaunch: n1: port {port} cannot be listened on" in done.stdout
    assert (site.record()["state"], site.record()["exit_code"]) == ("failed", 3)
    assert f"n1: port {port} cannot be listened on" in site.mslaunch("status").stdout


def test_without_slurm_s_commands(site: Bench) -> None:
    done = site.mslaunch("train", *SLURM, PATH="/nowhere")
    assert done.returncode == 3
    assert "sbatch is not on PATH" in done.stderr


def test_infer_is_submitted_like_train(site: Bench) -> None:
    model = next((Path(__file__).parents[1] / "fixtures/checkpoints").rglob("*.ckpt"))
    site.write("infer.py", "from mslaunch import runtime\nprint(runtime.checkpoint_file())\n")
    done = site.mslaunch("infer", "--ckpt", str(model), *SLURM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert model.name in site.log(3)


ALL_REDUCE = """
import mindspore as ms
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
print("sum", ms.ops.AllReduce()(ms.Tensor([get_rank() + 1.0], ms.float32)).asnumpy()[0])
"""


@pytest.mark.parametrize("method", ["dynamic", "rank-table", "mpirun"])
def test_two_nodes_add_up(site: Bench, method: str) -> None:
    """2 Slurm nodes, 2 ranks each, real MindSpore: 1 + 2 + 3 + 4 on every rank."""
    site.write("train.py", ALL_REDUCE)
    done = site.mslaunch("train", *SLURM, "--method", method)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ["sum 10.0\n" in site.log(rank) for rank in range(4)] == [True] * 4
