"""Silence is blamed on the peer only if this process ran, and looked, all the while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mslaunch.shared import wire
from mslaunch.shared.running_clock import LONGEST_TURN, RunningClock
from mslaunch.transports.prestart import AGENT
from tests.beds.driven_agent import driven_agent
from tests.beds.join_bed import start_here
from tests.beds.slurm_bed import Slurm
from tests.beds.ssh_bed import free_port
from tests.conftest import MSLAUNCH, ROOT, Bench, wait_for

WAITS = "import time\nwhile not __import__('os').path.exists('{flag}'): time.sleep(0.1)\nprint('done')\n"
PRINTS = "import os, time\nfor step in range(60):\n    print(f'step {step}', 'x' * 8000)\n    time.sleep(0.1)\n"


def stopped_for(launcher: subprocess.Popen[str], seconds: float, number: int = signal.SIGSTOP) -> None:
    """Stop a launcher for so long, and continue it."""
    launcher.send_signal(number)
    wait_for(lambda: psutil.Process(launcher.pid).status() == psutil.STATUS_STOPPED, "the launcher to stop")
    time.sleep(seconds)
    launcher.send_signal(signal.SIGCONT)


def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    """A turn that took an hour counts as one turn; usual turns count as they are."""
    times = iter([0.0, 0.5, 1.0, 3601.0, 3601.5])
    clock = RunningClock(lambda: next(times))
    assert [clock.advance() for _ in range(4)] == [0.5, 1.0, 1.0 + LONGEST_TURN, 1.5 + LONGEST_TURN]


def test_a_launcher_that_is_stopped_on_this_machine_loses_nothing(bench: Bench) -> None:
    """By Ctrl-Z or by SIGSTOP, for longer than any limit of silence: only the end of the stream is its end."""
    flag = bench.folder.parent / "flag"
    bench.write("train.py", WAITS.format(flag=flag))
    bench.write("cfg.yaml", "launch: {host_lost_after: 1, launcher_lost_after: 1, config_arg: null}\n")
    launcher = bench.start("train", "-n", "2", "-c", "cfg.yaml")
    wait_for(lambda: len(bench.leftovers()) == 2, "the ranks")
    for number in (signal.SIGTSTP, signal.SIGSTOP):
        stopped_for(launcher, 2.5, number)
        assert len(bench.leftovers()) == 2
    flag.touch()
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, out


def test_a_stopped_launcher_loses_no_host_over_ssh(far: Bench) -> None:
    """Hosts wait for launch.launcher_lost_after; the launcher does not blame them for its own silence."""
    flag = far.folder.parent / "flag"
    far.write("train.py", WAITS.format(flag=flag))
    far.write("cfg.yaml", "launch: {host_lost_after: 3, config_arg: null}\n")
    launcher = far.start("train", "--hosts", "n1:1,n2:1", "-c", "cfg.yaml")
    wait_for(lambda: len(far.leftovers()) == 2, "the ranks")
    stopped_for(launcher, 4.5)
    flag.touch()
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, out


def test_a_stopped_launcher_loses_no_node_that_joined(bench: Bench) -> None:
    """The kernel answers for it, also once the node's output has filled every buffer on the way."""
    bench.write("train.py", PRINTS)
    bench.write("cfg.yaml", "launch: {host_lost_after: 2, config_arg: null}\n")
    master = f"127.0.0.1:{free_port()}"
    command = ("train", "--nnodes", "2", "--master", master, "-c", "cfg.yaml", "--tail", "all")
    nodes = [start_here(bench, *command, "--node-rank", str(rank)) for rank in (0, 1)]
    wait_for(lambda: bench.runs.exists() and "step 5" in bench.log(1), "the ranks")
    stopped_for(nodes[0].process, 5.0)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].text + nodes[1].text


def test_an_agent_gives_up_a_launcher_that_is_silent_for_too_long(tmp_path: Path) -> None:
    """After launch.launcher_lost_after it ends its ranks; without a limit it waits for the end of its stream."""
    with driven_agent(tmp_path) as agent:
        agent.run("sleep 60", launcher_lost_after=1.0)
        (*_, abandoned) = agent.until("abandoned")
        assert abandoned["why"] == "the launcher was silent for 1 s (launch.launcher_lost_after)"
        agent.until("exited")


def test_a_suspended_slurm_job_is_not_lost(site: Bench, slurm: Slurm) -> None:
    """`scontrol suspend` stops the nodes and not a launcher on a login host, which asks Slurm before it blames them."""
    flag = site.folder.parent / "flag"
    site.write("train.py", WAITS.format(flag=flag))
    site.write("cfg.yaml", "launch: {host_lost_after: 2, config_arg: null}\n")
    site.program = "salloc"
    launcher = site.start("--quiet", "-N2", MSLAUNCH, "train", "-n", "2", "-c", "cfg.yaml")
    wait_for(lambda: len(site.leftovers()) == 2, "the ranks")
    job = slurm.run("squeue", "-h", "-o", "%i").stdout.strip()
    slurm.run("scontrol", "suspend", job)
    events = site.latest / "events.jsonl"
    wait_for(lambda: f"Slurm has suspended job {job}" in events.read_text(), "the note")
    slurm.run("scontrol", "resume", job)
    flag.touch()
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, out
    assert out.count("Slurm has suspended job") == 1


def test_starting_many_ranks_does_not_stop_the_agents_loop(tmp_path: Path) -> None:
    """An agent that starts a thousand processes answers its launcher in between."""
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", AGENT, str(ROOT), "h"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin
    assert agent.stdout
    planned: dict[str, Any] = {"role": "worker", "argv": ["/bin/true"], "env": {}, "cwd": "/", "start": "now"}
    order: dict[str, Any] = {"run_dir": str(tmp_path), "attempt": 0, "env": {}, "unset": [], "secrets": {}, "tail": []}
    order |= {"launcher_lost_after": 30.0, "grace": 1.0, "answers": True, "setup": None, "sync": None, "stdin": None}
    order |= {"metrics": None, "device_files": None, "reports_launchers": False}
    order["processes"] = [{**planned, "rank": rank, "log": str(tmp_path / f"rank_{rank}/log")} for rank in range(1000)]
    with agent:
        agent.stdin.write(wire.MAGIC + wire.encode({"to": "h", "do": "run", **order}))
        for _ in range(3):
            agent.stdin.write(wire.encode({"to": "h", "do": "ping"}))
        agent.stdin.flush()
        decoder = wire.Decoder()
        events: list[str] = []
        while events.count("started") < 1000:
            events += [event["ev"] for event in decoder.feed(os.read(agent.stdout.fileno(), 65536))]
        agent.stdin.write(wire.encode({"to": "h", "do": "bye"}))
    assert events.index("pulse") < events.index("started") + 999
