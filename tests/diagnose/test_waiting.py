"""Who waits for whom: the culprit is where the chain ends, whatever the logs are called and the clocks show."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.sources import files_of
from mslaunch.diagnose.verdict import Step, Verdict
from tests.beds.hccl_logs import DEVICES, GROUP, Job
from tests.conftest import Bench

SEEDS = range(200)
HUNG = """
import os, pathlib, sys, time

rank = int(os.environ["RANK_ID"])
run = pathlib.Path(os.environ["MSLAUNCH_RUN_DIR"])
log = run / f"rank_{rank}/plog/run/plog/plog-{os.getpid()}_1.log"
log.parent.mkdir(parents=True)
head = f"HCCL({os.getpid()},python):2026-03-01-08:00:00.000.000"
text = f"[INFO] {head} [t.cc:1] SetupAgent rankNum[3], rank[{rank}], logicDevId[{rank}]\\nother\\n"
if rank < 2:
    text += f"[ERROR] {head} [t.cc:1] Notify record from remote rank: [{rank + 1}].\\n"
log.write_text(text)
if rank == 2:
    time.sleep(60)
for peer in range(3):
    while not any(path.stat().st_size for path in (run / f"rank_{peer}").glob("plog/run/plog/*.log")):
        time.sleep(0.01)
sys.exit(1)
"""
SHAPES = ("chain", "cycle", "outside", "two", "many", "skewed")


def verdict_of(folder: Path) -> Verdict:
    evidence = read_sources(files_of(folder))
    verdict = judge(evidence.cases, evidence.places)
    assert verdict is not None
    return verdict


def ranks_of(chain: tuple[Step, ...]) -> list[int | None]:
    return [step.rank for step in chain]


def chain_of(job: Job, ranks: list[int]) -> None:
    for rank, peer in itertools.pairwise(ranks):
        job.waits(rank, peer)


def write_shape(folder: Path, seed: int) -> tuple[str, set[int | None], Job]:
    """Write logs of one of the shapes; return which, and who may be named."""
    shape = SHAPES[seed % len(SHAPES)]
    chance = random.Random(seed)
    job = Job(folder, 256 if shape == "many" else 24, seed, skew=3600.0 if shape == "skewed" else 0.5)
    picked = chance.sample(range(job.ranks), 8)
    culprits: set[int | None] = {picked[4]}
    if shape == "two":
        chain_of(job, picked[:5])
        chain_of(job, picked[5:8])
    elif shape == "cycle":
        chain_of(job, picked[:3])
        job.waits(picked[2], picked[1])
        culprits = {picked[1], picked[2]}
    elif shape == "many":  # everybody waits for a neighbour, and so for the one who is silent
        at = picked[4]
        for number in range(1, job.ranks):
            job.waits((at + number) % job.ranks, (at + number - 1) % job.ranks)
    else:
        chain_of(job, picked[:5])
    if shape == "outside":
        job.hidden = {picked[4]}
    elif shape == "skewed":
        job.fails(picked[4], 5.0)
    job.write()
    return shape, culprits, job


@pytest.mark.parametrize("seed", SEEDS)
def test_the_culprit_is_found_in_logs_of_every_shape(tmp_path: Path, seed: int) -> None:
    """Chains, circles, culprits without a log, two chains, 256 ranks and clocks that are off, in all forms of lines."""
    shape, culprits, job = write_shape(tmp_path, seed)
    verdict = verdict_of(tmp_path)
    last = verdict.chain[-1]
    if shape == "outside":
        (rank,) = culprits
        assert rank is not None
        known = {last.rank, last.host}
        assert known & {rank, job.address(rank), job.host(rank)}, (verdict.summary, rank)
        assert "no log is here" in verdict.summary
    else:
        assert verdict.rank in culprits, verdict.summary
        assert last.rank == verdict.rank
    assert {"cycle": "cycle", "outside": "outside", "skewed": "pattern"}.get(shape, "silent") == verdict.cause


def test_a_chain_is_told_step_by_step(tmp_path: Path) -> None:
    """One sentence names everybody, and each step has the line that shows it."""
    job = Job(tmp_path, 16)
    job.waits(2, 10, form="table")
    job.waits(10, 8, form="table")
    job.waits(8, 9, form="p2p")
    job.waits(11, 9, form="p2p")
    verdict = verdict_of(job.write())
    assert verdict.summary == (
        "rank 2 (10.0.0.1, device 2) waits for rank 10 (10.0.0.2, device 2), which waits for rank 8 (10.0.0.2,"
        " device 0), which waits for rank 9 (10.0.0.2, device 1), which left no error: look there first"
        " (4 ranks lead there)"
    )
    assert ranks_of(verdict.chain) == [2, 10, 8, 9]
    for step, words in zip(verdict.chain, ("(10)", "(8)", "remote physic id:1", "rank[9]"), strict=True):
        assert step.log is not None
        assert step.line is not None
        lines = Path(step.log).read_text().splitlines()
        assert words in lines[step.line - 1] or step.rank == 9


def test_two_who_wait_for_each_other_are_both_named(tmp_path: Path) -> None:
    """The link between them is what to look at first."""
    job = Job(tmp_path, 16)
    job.waits(0, 9, form="table")
    job.waits(9, 0, form="table")
    job.waits(3, 9, form="notify")
    verdict = verdict_of(job.write())
    assert verdict.cause == "cycle"
    assert "rank 0 (10.0.0.1, device 0)" in verdict.summary
    assert "rank 9 (10.0.0.2, device 1)" in verdict.summary
    assert "wait for each other: look at the link between them first" in verdict.summary


def test_an_error_of_its_own_ends_a_chain_though_its_clock_is_late(tmp_path: Path) -> None:
    """The order of waiting counts; that the times contradict is told."""
    job = Job(tmp_path, 16)
    job.clock = {0: 0.0, 1: 3600.0}
    job.waits(0, 1, form="notify")
    job.waits(1, 12, form="notify")
    job.fails(12, 5.0)
    job.waits(12, 3, seconds=140.0, form="notify")  # what it complains of afterwards is a consequence
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.pattern, ranks_of(verdict.chain)) == (12, "npu-port-down", [0, 1, 12])
    assert "the clocks of the hosts differ" in (verdict.advice or "")


def test_what_a_rank_prints_after_it_waited_is_no_cause(tmp_path: Path) -> None:
    """An error that follows a time-out is its consequence."""
    job = Job(tmp_path, 8)
    job.waits(1, 5, form="notify")
    job.fails(1, 131.0)
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause) == (5, "silent")


def test_ranks_that_never_came_are_named(tmp_path: Path) -> None:
    """The root lists who is connected; the others are missing."""
    job = Job(tmp_path, 8, hidden={5})
    listed = ",".join(f"[{rank:016d}]" for rank in range(8) if rank != 5)
    job.says(0, 120.0, "[topoinfo_exchange_server.cc:314] [9][Get][Connection]topo exchange server get socket timeout!")
    job.says(
        0, 120.0, f"[topoinfo_exchange_server.cc:517] [9][DisplayConnectionedRank]connected rankinfo[LINE 0]: {listed};"
    )
    for rank in (1, 2):
        job.says(
            rank, 121.0, "[topoinfo_exchange_agent.cc:190] [7]topo exchange agent get socket timeout! timeout[120]"
        )
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause) == (5, "outside")
    assert ranks_of(verdict.chain) == [1, 0, 5]
    assert verdict.victims == (0, 1, 2)


def test_a_root_without_logs_is_named_by_its_address(tmp_path: Path) -> None:
    """Ranks that wait for an answer of the root lead to its address and port."""
    for pid, rank in ((123, 6), (136, 5)):
        (tmp_path / "worker-1").mkdir(exist_ok=True)
        (tmp_path / "worker-1" / f"plog-parser-{pid}-1.log").write_text(
            f"[INFO] HCCL({pid},python):2024-03-28-10:23:47.960.557 [op_base.cc:413][{pid}]Entry-HcclCommInitRootInfo:"
            f"ranks[8], rank[{rank}], rootinfo: host ip[10.0.0.7] port[60004] nicDeploy[1] identifier[{GROUP}],"
            f" deviceLogicId[{rank - 4}]\n"
            f"[ERROR] HCCL({pid},python):2024-03-28-10:25:50.589.711 [topoinfo_exchange_base.cc:104][{pid}][Recv]"
            "[ClusterInfoMsg]receive msg length from fdhandle failed, ret[9]\n"
            f"[ERROR] HCCL({pid},python):2024-03-28-10:25:50.599.958 [op_base.cc:481][{pid}]HcclCommInitRootInfo"
            f" failed, return[0x0000000005000004], rankNum[8], rank[{rank}], logicDevId[-1]\n"
        )
    verdict = verdict_of(tmp_path)
    assert (verdict.rank, verdict.host, verdict.cause) == (None, "10.0.0.7", "outside")
    assert "waits for 10.0.0.7:60004" in verdict.summary
    assert verdict.victims == (5, 6)


def test_both_ends_of_a_broken_link_are_known_from_one_line(tmp_path: Path) -> None:
    """EI0013 names server, device and address of both."""
    line = "Execution Error ROCE CQE(EI0013): An error CQE occurred. Local information: server 10.0.0.1, device ID 0,"
    line += " device IP 127.10.0.1. Peer information: server 10.0.0.2, device ID 1, device IP 127.10.0.2.\n"
    (tmp_path / "plog-77_1.log").write_text(f"[PID: 77] 2025-12-04-21:59:08.232.310 {line}")
    verdict = verdict_of(tmp_path)
    assert verdict.cause == "link"
    assert "device 0 of 10.0.0.1 lost the network link to device 1 of 10.0.0.2" in verdict.summary


@pytest.mark.parametrize("beside", ["table", "hccn", "nothing"])
def test_an_address_is_named_by_what_stands_beside_the_logs(tmp_path: Path, beside: str) -> None:
    """A rank table gives rank, host and device, hccn_tool's output host and device; without both, it is an address."""
    job = Job(tmp_path, 2 * DEVICES, hidden=set(range(DEVICES, 2 * DEVICES)))
    job.says(3, 60.0, "[heartbeat.cc:551][7][Heartbeat]cqe err status[12], time:[x], ip:[192.168.2.15]")
    job.write()
    if beside == "table":
        devices = [
            f'{{"device_id": "{d}", "device_ip": "192.168.{s + 1}.{d + 10}", "rank_id": "{s * DEVICES + d}"}}'
            for s in range(2)
            for d in range(DEVICES)
        ]
        servers = [
            f'{{"server_id": "10.0.0.{s + 1}", "device": [{", ".join(devices[s * DEVICES : (s + 1) * DEVICES])}]}}'
            for s in range(2)
        ]
        (tmp_path / "jobstart_hccl.json").write_text(
            f'{{"version": "1.0", "status": "completed", "server_count": "2", "server_list": [{", ".join(servers)}]}}'
        )
    elif beside == "hccn":
        (tmp_path / "node-7").mkdir()
        (tmp_path / "node-7" / "npu_info.txt").write_text(
            "/usr/local/Ascend/driver/tools/hccn_tool -i 5 -ip -g\nipaddr:192.168.2.15\nnetmask:255.255.0.0\n"
        )
    last = verdict_of(tmp_path).chain[-1]
    expected = {
        "table": (13, "10.0.0.2", 5),
        "hccn": (None, "node-7", 5),
        "nothing": (None, "192.168.2.15", None),
    }
    assert (last.rank, last.host, last.device) == expected[beside]


def test_healthy_lines_about_peers_alarm_nobody(tmp_path: Path) -> None:
    """Ranks introduce themselves, listen, and name peers at a harmless level in every run."""
    job = Job(tmp_path, 16)
    for rank in range(16):
        text = f"[task.cc:1] Notify record from remote rank: [{(rank + 1) % 16}]"
        job.began[rank].append(job.line(rank, 2.0, text, "INFO"))
    evidence = read_sources(files_of(job.write()))
    assert judge(evidence.cases, evidence.places) is None


def test_a_hung_rank_is_named_when_the_ranks_that_wait_for_it_fail(bench: Bench) -> None:
    """The launcher reads CANN's logs of all ranks, of those that have not failed as well."""
    bench.write("train.py", HUNG)
    done = bench.mslaunch("train", "-n", "3")
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["cause"]) == (2, "silent"), done.stderr
    chain = [(step["rank"], step["host"] is not None, step["line"]) for step in verdict["chain"]]
    assert chain[-2:] == [(1, True, 3), (2, True, verdict["line"])]
    assert "which left no error: look there first" in done.stdout


def test_the_command_line_shows_the_chain_and_its_evidence(bench: Bench) -> None:
    """Heading, sentence and a line of evidence for each step."""
    job = Job(bench.folder / "logs", 16)
    job.waits(1, 9, form="table")
    job.write()
    shown = bench.mslaunch("diagnose", "logs").stdout
    assert "Look first at: rank 9, host 10.0.0.2, device 1" in shown
    assert "rank 1 (10.0.0.1, device 1) waits for rank 9 (10.0.0.2, device 1), which left no error" in shown
    assert shown.count("evidence: ") == 2
