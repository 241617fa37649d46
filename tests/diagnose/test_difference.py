"""What sets one rank apart where all wait: its collective, its TLS, its silence; and whom a line names by address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beds.hccl_logs import GROUP, Job
from tests.diagnose.test_waiting import ranks_of, verdict_of

RANKS = 4


def in_task(job: Job, rank: int, name: str = "AllReduce", index: int = 3, count: int = 256) -> None:
    """Have a rank complain of the collective in which it waits, and of no peer."""
    head = "[task_exception_handler.cc:908] [7][TaskExecStage][Timeout][Host]FFTS+ run failed,"
    job.says(rank, 130.0, f"{head} base information is streamID:[2], taskID[21], tag[{name}_{GROUP}], index[{index}].")
    job.says(
        rank,
        130.0,
        f"{head} opData information is timeStamp:[2026-03-01-08:00:01.000.000], deviceId[0], index[{index}],"
        f" count[{count}], reduceType[sum], src[0x1], dst[0x2], dataType[float32].",
    )


@pytest.mark.parametrize(
    ("different", "words"),
    [
        ({"name": "AllGather"}, "in AllGather, the others of its group in AllReduce"),
        ({"index": 2}, "in collective 2 of its group, the others in 3"),
        ({"count": 8}, "in a collective of 8 elements, the others of 256"),
    ],
)
def test_the_rank_in_another_collective_is_named(tmp_path: Path, different: dict[str, object], words: str) -> None:
    """All ranks time out and none names a peer; one is in another collective, an earlier one, or one of other size."""
    job = Job(tmp_path, RANKS)
    for rank in range(RANKS):
        in_task(job, rank, **(different if rank == 2 else {}))  # type: ignore[arg-type]
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.pattern, verdict.victims) == (2, "hccl-inconsistent", (0, 1, 3))
    assert words in verdict.summary


def test_few_that_differ_from_most_are_counted(tmp_path: Path) -> None:
    """The first of them is named."""
    job = Job(tmp_path, 8)
    for rank in range(8):
        in_task(job, rank, name="AllGather" if rank in (3, 6) else "AllReduce")
    verdict = verdict_of(job.write())
    assert verdict.rank == 3
    assert "is in AllGather (as 1 other), the others of its group in AllReduce" in verdict.summary


def test_two_halves_that_differ_blame_nobody(tmp_path: Path) -> None:
    """Ranks of a job may wait in two groups, each with its own collectives."""
    job = Job(tmp_path, RANKS)
    for rank in range(RANKS):
        in_task(job, rank, index=3 + rank % 2)
    assert "is in collective" not in verdict_of(job.write()).summary


def test_a_circle_ends_with_the_rank_in_another_collective(tmp_path: Path) -> None:
    """Ranks wait for each other in a circle; the one in another collective is the culprit."""
    job = Job(tmp_path, RANKS)
    for rank in range(RANKS):
        head = "[task_exception_handler.cc:452][7][TaskExceptionHandler][Callback]Task run failed,"
        tag = f"tag[{'AllGather' if rank == 1 else 'AllReduce'}_{GROUP}]"
        job.says(rank, 130.0, f"{head} base information is streamID:[3], taskType[Notify Wait], {tag}, index[3]")
        job.says(rank, 130.0, f"{head} para information is notify id:[0x1], remote rank:[{(rank + 1) % RANKS}].")
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause) == (1, "cycle")
    assert ranks_of(verdict.chain)[-1] == 1
    assert "rank 1 (10.0.0.1, device 1) is in AllGather, the others of its group in AllReduce" in verdict.summary


@pytest.mark.parametrize(
    ("name", "index", "words"),
    [
        ("AllGather", 3, "in AllGather, the others of its group in AllReduce"),
        ("AllReduce", 2, "in collective 2 of its group, the others in 3"),
    ],
)
@pytest.mark.parametrize("waits", [{0: 3, 2: 3, 3: 1, 1: 2}, {0: 3, 3: 1, 1: 2}], ids=["circle", "chain"])
def test_where_a_whole_group_waits_nobody_else_is_to_blame(
    tmp_path: Path, waits: dict[int, int], name: str, index: int, words: str
) -> None:
    """Lines name peers, and a device without a log that has lost its heartbeat; one rank is in another collective."""
    job = Job(tmp_path, RANKS)
    head = "[task_exception_handler.cc:452][7][TaskExceptionHandler][Callback]Task run failed,"
    for rank in range(RANKS):
        task = f"tag[{name}_{GROUP}], index[{index}]" if rank == 1 else f"tag[AllReduce_{GROUP}], index[3]"
        job.says(rank, 130.0, f"{head} base information is streamID:[3], taskType[Notify Wait], {task}")
        if rank in waits:
            job.says(rank, 130.0, f"{head} para information is notify id:[0x1], remote rank:[{waits[rank]}].")
    lost = "[t.cc:340][7]server:10.0.0.1/5, server:10.0.0.1/1, Heartbeat Lost Occurred, Possible Reason: 1."
    job.says(1, 130.1, lost)
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.pattern, verdict.victims) == (1, "hccl-inconsistent", (0, 2, 3))
    assert words in verdict.summary
    assert "Device 5 of 10.0.0.1, which the logs name as well, is not in this group." in str(verdict.advice)


def test_a_lost_heartbeat_counts_where_a_rank_of_the_group_is_not_there(tmp_path: Path) -> None:
    """Then the ranks that wait in an earlier collective may wait for that one."""
    job = Job(tmp_path, RANKS, hidden={3})
    for rank in range(RANKS - 1):
        in_task(job, rank, index=2 if rank == 1 else 3)
    job.says(
        1, 130.1, "[t.cc:340][7]server:10.0.0.1/3, server:10.0.0.1/1, Heartbeat Lost Occurred, Possible Reason: 1."
    )
    verdict = verdict_of(job.write())
    assert (verdict.cause, verdict.chain[-1].device) == ("outside", 3)


def test_the_rank_of_a_group_that_says_nothing_is_named(tmp_path: Path) -> None:
    """All others wait in the same collective and name no peer."""
    job = Job(tmp_path, RANKS)
    for rank in (0, 1, 3):
        in_task(job, rank)
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause, verdict.victims) == (2, "silent", (0, 1, 3))
    assert "left no error, while 3 ranks of its group waited" in verdict.summary


def write_tls(job: Job, rank: int, switch: int) -> None:
    line = job.line(rank, 2.0, f"[rs_ssl.c:1524]tid:1, rs_ssl_init(1524) : TLS SWITCH ({switch})", "INFO")
    job.began[rank].append(line.replace("HCCL", "HCCP"))


def test_two_ends_that_differ_in_tls_are_told(tmp_path: Path) -> None:
    """Both ends of a link time out, and TLS is on at one of them only."""
    job = Job(tmp_path, 16)
    job.waits(0, 9, form="table")
    job.waits(9, 0, form="table")
    for rank in range(16):
        write_tls(job, rank, int(rank == 9))
    verdict = verdict_of(job.write())
    assert (verdict.cause, verdict.pattern) == ("cycle", "hccl-tls")
    assert "TLS is on for 1 NPU port and off for the others" in verdict.summary


def test_tls_is_not_blamed_where_the_peer_said_nothing(tmp_path: Path) -> None:
    """A peer that never came to connect is the culprit, whatever its TLS."""
    job = Job(tmp_path, 16)
    job.waits(0, 9, form="table")
    write_tls(job, 0, 0)
    write_tls(job, 9, 1)
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause) == (9, "silent")


def test_a_peer_is_found_by_its_address_though_its_rank_is_that_of_a_group(tmp_path: Path) -> None:
    """Ranks in the lines of a smaller group are not the ranks of the job; host and device are."""
    job = Job(tmp_path, 24)
    for rank, peer in ((18, 9), (9, 2)):
        job.says(
            rank,
            130.0,
            "[transport_manager.cc:777] [7][Create][DestLink]Transport init error! createLink para:rank[3]-"
            "localUserrank[3]-localIpAddr[], dst_rank[0]-remoteUserrank[0]-remoteIpAddr"
            f"[{job.host(peer)}/{peer % 8}], machineType[1], tag[AllGather_group_name_0]",
        )
    verdict = verdict_of(job.write())
    assert (verdict.rank, ranks_of(verdict.chain)) == (2, [18, 9, 2])


def test_a_link_that_a_third_rank_saw_fail_is_an_edge(tmp_path: Path) -> None:
    """Every rank prints which two could not connect; the first of these waits for the second."""
    job = Job(tmp_path, 16)
    job.says(
        5,
        130.0,
        "[detect_connect_anomalies.cc:132] [7]This node (server 10.0.0.1, device ID 5) detects that srcRank (server"
        " 10.0.0.1, device ID 1) fails to connect to dstRank (server 10.0.0.2, device ID 4).",
    )
    verdict = verdict_of(job.write())
    assert (verdict.rank, ranks_of(verdict.chain)) == (12, [1, 12])


def test_a_rank_that_waits_for_somebody_unnamed_is_suspected_last(tmp_path: Path) -> None:
    """Of the ranks that the root misses, the one without any log is the culprit, not those that wait for the root."""
    job = Job(tmp_path, 8, hidden={5})
    came = ",".join(f"[{rank:016d}]" for rank in (0, 1))
    job.says(0, 120.0, "[topoinfo_exchange_server.cc:314] [9][Get][Connection]topo exchange server get socket timeout!")
    job.says(0, 120.0, f"[topoinfo_exchange_server.cc:517] [9]connected rankinfo[LINE 0]:{came};")
    for rank in (2, 3, 4, 6, 7):
        job.says(rank, 121.0, "[adapter_hccp.cc:872][1][Recv][RaSocket]errNo[0x13] Wait timeout for sockets recv")
    verdict = verdict_of(job.write())
    assert (verdict.rank, verdict.cause) == (5, "outside")


def test_a_lost_heartbeat_of_older_versions_blames_the_first_address(tmp_path: Path) -> None:
    """The second one is the rank that noticed it."""
    job = Job(tmp_path, 8)
    job.says(
        1, 130.0, "[t.cc:340][7]server:10.0.0.1/5, server:10.0.0.1/1, Heartbeat Lost Occurred, Possible Reason: 1."
    )
    assert verdict_of(job.write()).rank == 5


def test_the_end_of_a_chain_that_waits_as_well_is_not_called_silent(tmp_path: Path) -> None:
    """It says that it waited, but not for whom."""
    job = Job(tmp_path, 8)
    job.waits(1, 5, form="notify")
    job.says(5, 130.0, "[adapter_hccp.cc:872][1][Recv][RaSocket]errNo[0x13] Wait timeout for sockets recv")
    verdict = verdict_of(job.write())
    assert verdict.rank == 5
    assert "which waits as well and does not say for whom: look there first" in verdict.summary
