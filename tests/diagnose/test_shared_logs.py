"""Logs that several processes share (torchrun, vLLM, Ray, srun, DeepSpeed), and messages below exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import scan
from mslaunch.diagnose.logs.sources import files_of
from mslaunch.diagnose.verdict import Verdict

RAISED = ("Traceback (most recent call last):", '  File "train.py", line 8, in <module>', "    main()")
LABELS = {
    "torchrun": ("[rank3]: ", 3),
    "mpirun": ("[1,3]<stderr>:", 3),
    "srun": ("3: ", 3),
    "DeepSpeed": ("worker-1: ", None),
    "DeepSpeed and torchrun": ("worker-1: [rank3]: ", 3),
    "container": ("2026-03-01T08:00:00.123456789Z stderr F ", None),
    "Ray": ("(Worker pid=45464, ip=10.0.0.1) ", None),
    "vLLM": ("(Worker_TP3 pid=45464) ERROR 06-09 06:57:48 [multiproc_executor.py:581] ", None),
    "vLLM, one process": ("ERROR 04-09 21:56:46 [diffusion_worker.py:744] ", None),
}
WATCHDOG = (
    "[Rank {0}] Watchdog caught collective operation timeout: WorkHCCL(SeqNum={1}, OpType=ALLREDUCE, Timeout(ms)=1)"
)
CANN = """
----------------------------------------------------
- Ascend Error Message:
----------------------------------------------------
EI0006: [PID: 1290] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the data.
"""


def verdict_of(folder: Path, **logs: str) -> Verdict:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    verdict = judge(read_sources(files_of(folder)).cases)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("name", LABELS)
def test_an_exception_with_a_label_before_its_lines_is_found(name: str) -> None:
    """The label is left out of its text, and the rank in it is known."""
    label, rank = LABELS[name]
    lines = [f"{label}{line}" for line in (*RAISED, "ValueError: bad label 7", "saved")]
    (raised,) = scan(["step 1", *lines, "step 2"]).raised
    assert (raised.line, raised.end, raised.rank) == (2, 5, rank)
    assert raised.summary == "ValueError: bad label 7"
    assert raised.traceback.startswith("Traceback")


def test_exceptions_whose_lines_are_mixed_are_told_apart(tmp_path: Path) -> None:
    """Two ranks print at the same time; the first that failed by itself is named, and torchrun's own error is not."""
    lines = []
    for line in RAISED:
        lines += [f"[rank1]: {line}", f"[rank3]: {line}"]
    lines += ["[rank1]: torch.distributed.DistBackendError: NCCL error", "[rank1]: ncclRemoteError: A call failed"]
    lines += [f"[rank3]: {line}" for line in (*RAISED, "ValueError: bad label 7")]
    lines += [*RAISED, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "]
    verdict = verdict_of(tmp_path, train="\n".join(lines))
    assert (verdict.rank, verdict.summary, verdict.advice) == (3, "ValueError: bad label 7", None)


def test_the_time_in_a_label_may_change_within_an_exception() -> None:
    """vLLM's logger writes the time before every line."""
    lines = [
        f"(W pid=7) ERROR 06-09 06:57:{48 + at} [a.py:1] {line}" for at, line in enumerate((*RAISED, "ValueError: x"))
    ]
    (raised,) = scan(lines).raised
    assert (raised.line, raised.end, raised.summary) == (1, 4, "ValueError: x")


def test_ranks_that_complain_in_one_log_are_compared(tmp_path: Path) -> None:
    """Each line of the watchdog names its rank; the one that is behind is the culprit."""
    lines = [WATCHDOG.format(rank, 195 if rank == 2 else 196) for rank in range(4)]
    verdict = verdict_of(tmp_path, train="\n".join(lines))
    assert (verdict.rank, verdict.victims) == (2, (0, 1, 3))
    assert "is in collective 195 of its group, the others in 196" in verdict.summary


def test_what_cann_says_below_an_exception_is_its_message(tmp_path: Path) -> None:
    """A rank whose collective timed out is a victim, though its RuntimeError stands lines above the code."""
    waited = "\n".join((*RAISED, f"RuntimeError: create group failed\n{CANN}"))
    failed = "\n".join((*RAISED, "ZeroDivisionError: division by zero\n"))
    verdict = verdict_of(tmp_path, worker_0=waited, worker_1=waited, worker_2=failed)
    assert (verdict.rank, verdict.victims) == (2, (0, 1))


def test_a_completion_error_before_the_line_that_names_the_peer_is_of_the_link(tmp_path: Path) -> None:
    """The driver's line names nobody; HCCL's line below it names the peer."""
    head = "(11,python):2026-03-01-09:00:00.000.000"
    verdict = verdict_of(
        tmp_path,
        rank_3=f"[ERROR] ROCE{head} [hns_roce_lite.c:630]hns_roce_lite_handle_error_cqe(630) : error cqe status: 0xc\n"
        f"[ERROR] HCCL{head} [heartbeat.cc:1] cqe error status[12], remoteIP{{deviceId[6],deviceIp[192.168.2.6]}}\n",
    )
    assert (verdict.rank, verdict.cause) == (3, "link")
    assert "lost the network link to 192.168.2.6" in verdict.summary


def test_the_level_of_a_line_is_behind_its_label() -> None:
    """A warning with the words of an error is none, whoever put a label before it."""
    line = "[INFO] HCCL(1,python):2026-03-01-09:00:00.000.000 [x.cc:1] error cqe status: 0x0"
    for label in ("", "[rank1]: ", "2026-03-01T08:00:00.1Z stdout F ", "(W pid=7) "):
        assert scan([f"{label}{line}"]).hits == ()
        assert len(scan([f"{label}{line.replace('INFO', 'ERROR')}"]).hits) == 1


def test_a_line_of_another_process_does_not_explain_an_exception(tmp_path: Path) -> None:
    """In a log that several share, only the lines of the exception itself are looked up."""
    lines = [f"2: {line}" for line in (*RAISED, "FileNotFoundError: /data/x")]
    verdict = verdict_of(tmp_path, train="\n".join((*lines, "OSError: [Errno 122] Disk quota exceeded")))
    assert (verdict.rank, verdict.summary, verdict.advice) == (2, "FileNotFoundError: /data/x", None)


def test_the_one_log_without_an_error_is_that_of_the_lost_process(tmp_path: Path) -> None:
    """Others name it by host and device, and its own log says neither."""
    lost = (
        f"{CANN}    Cluster Exception Location[IP/ID]:[10.0.0.1/2], Discoverer:[10.0.0.1/0],"
        " ExceptionType:[Heartbeat Lost Occurred]"
    )
    verdict = verdict_of(tmp_path, worker_0=lost, worker_1=lost, worker_2="epoch: 1 step: 1, loss is 3\n")
    assert (verdict.rank, verdict.cause, verdict.victims) == (2, "silent", (0, 1))
    assert "waits for rank 2 (10.0.0.1, device 2), which left no error" in verdict.summary
