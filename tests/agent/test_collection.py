"""Collecting logs from hosts without a shared folder: quick, bounded, beside everything else, and ended by a signal."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent import launcher_stream
from mslaunch.agent.file_pieces import MOST_NAMED
from mslaunch.shared.wire import decode_data
from tests.beds import ssh_bed
from tests.beds.driven_agent import PING, DrivenAgent, driven_agent
from tests.conftest import Bench, wait_for

MB = 1 << 20
ANSWER: dict[str, Any] = {"do": "listen", "port": None, "choices": []}


def log_of(folder: Path, rank: int, data: bytes) -> None:
    (folder / f"rank_{rank}").mkdir(exist_ok=True)
    (folder / f"rank_{rank}" / "log.txt").write_bytes(data)


class Receiver:
    """Takes an agent's files as a launcher does: acknowledges each piece, and puts them together."""

    def __init__(self, agent: DrivenAgent, folder: Path, share: float = 1.0, tidy: bool = False) -> None:
        self.agent = agent
        self.files: dict[str, bytearray] = {}
        self.pieces: list[str] = []
        self.unwritten = 0
        self._turn = 0
        self._order = {"do": "collect", "run_dir": str(folder), "tidy": tidy, "share": share}

    def ask(self) -> None:
        self._turn += 1
        self.agent.send({**self._order, "turn": self._turn})

    def take(self, event: dict[str, Any]) -> int:
        """Add a piece to its file; return how long it is."""
        data = decode_data(event["data"], event["is_text"])
        if not event["offset"]:
            self.files[event["path"]] = bytearray()
        file = self.files[event["path"]]
        assert event["offset"] == len(file)
        file += data
        self.pieces.append(event["path"])
        return len(data)

    def receive(self, until: str = "collected") -> dict[str, Any]:
        """Acknowledge pieces until an event of another name comes, and return it."""
        while True:
            event = self.agent.next()
            if event["ev"] == "file":
                self.agent.send({"do": "written", "bytes": self.take(event)})
            elif event["ev"] == until:
                return event


def test_all_bytes_come_and_only_what_is_new_comes_again(tmp_path: Path) -> None:
    """Text with control characters, bytes that are none, and an empty file."""
    text = b'line\t"x" \\ \x1b[1m\r\n' * 200_000
    log_of(tmp_path, 0, text)
    log_of(tmp_path, 1, bytes(range(256)) * 4096)
    log_of(tmp_path, 2, b"")
    with driven_agent(tmp_path) as agent:
        receiver = Receiver(agent, tmp_path)
        receiver.ask()
        receiver.receive()
        assert receiver.files == {"rank_0/log.txt": text, "rank_1/log.txt": bytes(range(256)) * 4096}
        pieces = len(receiver.pieces)
        with (tmp_path / "rank_0/log.txt").open("ab") as file:
            file.write(b"more")
        receiver.ask()
        receiver.receive()
        assert receiver.files["rank_0/log.txt"] == text + b"more"
        assert len(receiver.pieces) == pieces + 1


def test_what_is_on_its_way_and_not_yet_written_is_bounded(tmp_path: Path) -> None:
    """However fast the launcher reads: the file is the buffer."""
    log_of(tmp_path, 0, b"x" * 40 * MB)
    with driven_agent(tmp_path) as agent:
        receiver = Receiver(agent, tmp_path)
        receiver.ask()
        for _ in range(20):
            agent.send(ANSWER)
            for event in agent.until("listening"):
                receiver.unwritten += receiver.take(event) if event["ev"] == "file" else 0
        assert 0 < receiver.unwritten <= 2 * launcher_stream.LEAST


def test_events_and_lines_come_between_the_pieces_of_a_long_log(tmp_path: Path) -> None:
    """A ping is answered and lines are shown while there is still much to collect."""
    log_of(tmp_path, 7, b"x" * 100 * MB)
    with driven_agent(tmp_path) as agent:
        agent.run("echo hello; sleep 600")
        agent.until("lines")
        receiver = Receiver(agent, tmp_path)
        receiver.ask()
        agent.send(PING)
        receiver.receive("pulse")
        with (tmp_path / "rank_0/log.txt").open("a") as log:
            log.write("again\n")
        receiver.receive("lines")
        assert len(receiver.files.get("rank_7/log.txt", b"")) < 100 * MB, "all of it came first"
        receiver.receive()
        assert len(receiver.files["rank_7/log.txt"]) == 100 * MB


def test_files_take_turns(tmp_path: Path) -> None:
    """A short log is not held up by a long one before it."""
    log_of(tmp_path, 0, b"x" * 20 * MB)
    log_of(tmp_path, 1, b"short")
    with driven_agent(tmp_path) as agent:
        receiver = Receiver(agent, tmp_path)
        receiver.ask()
        receiver.receive()
    assert receiver.pieces[1] == "rank_1/log.txt"


def test_a_collection_beside_the_job_goes_on_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """It takes a small share of the agent's time, and is not begun anew before it is through."""
    log_of(tmp_path, 0, b"x" * 4 * MB)
    log_of(tmp_path, 1, b"y" * 4 * MB)
    with driven_agent(tmp_path) as agent:
        receiver = Receiver(agent, tmp_path, share=0.05)
        for _ in range(5):
            receiver.ask()
        assert receiver.receive()["turn"] == 1
    assert {len(data) for data in receiver.files.values()} == {4 * MB}


def test_nothing_is_removed_before_it_is_written_elsewhere(tmp_path: Path) -> None:
    """Only the acknowledgement of the last piece lets the agent remove the log; what the job wrote stays."""
    run_dir = tmp_path / "runs" / "run"
    run_dir.mkdir(parents=True)
    log_of(run_dir, 0, b"precious")
    (run_dir / "rank_0/work").mkdir()
    for number in range(2 * MOST_NAMED):
        (run_dir / f"rank_0/work/weights{number}").write_text("x")
    with driven_agent(tmp_path) as agent:
        receiver = Receiver(agent, run_dir, tidy=True)
        receiver.ask()
        size = receiver.take(agent.until("file")[-1])
        agent.send(ANSWER)
        agent.until("listening")
        assert (run_dir / "rank_0/log.txt").exists()
        agent.send({"do": "written", "bytes": size})
        collected = receiver.receive()
    assert not (run_dir / "rank_0/log.txt").exists()
    assert (collected["count"], len(collected["kept"])) == (2 * MOST_NAMED, MOST_NAMED)


def test_a_fast_line_gets_a_large_window_and_a_slow_one_a_small_window() -> None:
    """What lies in the connection delays the events behind it."""
    now = 0.0
    sending = launcher_stream.SendWindow(lambda: now)
    for _ in range(10):
        sending.sent(1000)
        now += launcher_stream.QUICK / 2
        sending.written(1000)
    assert sending.piece == launcher_stream.LONGEST_PIECE
    for _ in range(10):
        sending.sent(1000)
        now += launcher_stream.SLOW * 2
        sending.written(1000)
    assert sending.piece == launcher_stream.LEAST // launcher_stream.PIECES
    assert sending.is_empty


THROTTLE = """
import os, sys, time
while data := os.read(0, 1 << 14):
    os.write(1, data)
    if os.path.exists(sys.argv[1]):
        time.sleep(0.05)
"""
LONG_LOG = "import sys\nprint('x' * (40 << 20))\nprint('last')\nsys.exit({code})\n"


@pytest.fixture
def slow(far: Bench, hosts: ssh_bed.Bed) -> Iterator[Path]:
    """A host `slow` with files of its own, that sends 300 KB a second as long as a file exists; yields that file."""
    folder = far.folder.parent
    (folder / "throttle.py").write_text(THROTTLE)
    script, flag = folder / "slowly", folder / "is-slow"
    script.write_text(f'#!/bin/sh\nsh -c "$SSH_ORIGINAL_COMMAND" | /usr/bin/env python3 {folder}/throttle.py {flag}\n')
    script.chmod(0o755)
    flag.touch()
    with ssh_bed.apart(hosts, "slow", far.folder, "200m", options=f"ForceCommand {script}\n"):
        yield flag


def has_event(far: Bench, name: str) -> bool:
    path = far.latest / "events.jsonl"
    return path.exists() and any(json.loads(line)["ev"] == name for line in path.read_text().splitlines())


@pytest.mark.parametrize(("number", "code", "state"), [(signal.SIGINT, 0, "succeeded"), (signal.SIGTERM, 7, "failed")])
def test_a_signal_ends_the_collection_and_nothing_else(
    far: Bench, slow: Path, number: signal.Signals, code: int, state: str
) -> None:
    """The run stays what it was, the rest stays on the host, and `collect` fetches it."""
    far.write("train.py", LONG_LOG.format(code=code))
    launcher = far.start("train", "--hosts", "slow:1", "--tail", "none")
    wait_for(lambda: far.runs.exists() and has_event(far, "idle"), "the end of the job")
    for _ in range(2):
        launcher.send_signal(number)
    assert launcher.wait(timeout=60) == code
    assert launcher.stdout is not None
    run = far.latest.name
    assert f"some stay on slow; `mslaunch collect {run}` fetches them" in launcher.stdout.read()
    assert (far.record()["state"], far.record()["exit_code"]) == (state, code)
    assert len(far.log(0)) < 40 * MB
    slow.unlink()
    done = far.mslaunch("collect")
    assert done.returncode == 0, done.stdout + done.stderr
    assert far.log(0).endswith("x\nlast\n")
    assert len(far.log(0)) > 40 * MB


def test_ctrl_c_before_a_restart_leaves_nothing_on_hosts_with_files_of_their_own(
    far: Bench, hosts: ssh_bed.Bed
) -> None:
    """The snapshot of the code is removed there, as at every other end."""
    far.write("train.py", "raise SystemExit(5)\n")
    far.write("cfg.yaml", "launch: {max_restarts: 1, backoff: 600, config_arg: null}\n")
    with ssh_bed.apart(hosts, "own9", far.folder) as server:
        there = Path(f"/proc/{server.pid}/root{far.runs}")
        launcher = far.start("train", "--hosts", "own9:1", "-c", "cfg.yaml")
        wait_for(lambda: far.runs.exists() and has_event(far, "restart"), "the pause")
        assert (there / far.latest.name / "code").exists()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=60) == 130
        assert not there.exists()
    assert far.record()["state"] == "stopped"
