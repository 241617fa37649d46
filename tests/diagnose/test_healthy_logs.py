"""Logs of jobs that are well give no alarm: words of errors, warnings, retries, and exceptions that were handled."""

from __future__ import annotations

from pathlib import Path

import pytest

from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import scan
from mslaunch.diagnose.logs.sources import files_of

HEAD = "(77,python):2026-03-01-08:00:00.000.000"
STEPS = [f"epoch: 1 step: {step}, loss is 0.5" for step in range(1, 9)]
RAISED = [
    "Traceback (most recent call last):",
    '  File "data.py", line 3, in load',
    "OSError: [Errno 24] Too many open files",
]
HEALTHY = {
    "words of a script": [
        "validation error: 0.032, top5 error 0.02",
        "timeout set to 30 s",
        "WARNING: failed to load optional plugin foo, continuing without it",
        "failed to connect to tracking server, retrying (1/3)",
        "loss: nan, skipping step (handled)",
        "Error: 0 of 100 samples skipped",
        "CUDA initialization: out of memory handler registered",
        "WARNING 06-09 [config.py:1] Watchdog timeouts are disabled",
    ],
    "retries that succeed": [
        "WARNING urllib3: Retrying (Retry(total=2)) after connection broken by 'NewConnectionError': [Errno 111]",
        "NCCL INFO NET/IB : No device found.",
        "NCCL WARN NET/Plugin: could not find libnccl-net.so",
        "n1:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE",
    ],
    "an exception that was handled": [*STEPS[:2], *RAISED, *STEPS[2:]],
    "an exception at the start that was handled": [*RAISED, "cache missing, building it", *STEPS],
    "a known error after which training went on": [*STEPS[:2], "EI0006: Getting socket times out.", *STEPS[2:]],
    "MindFormers": [
        *RAISED,
        *(f"- INFO - {{ Epoch:[  1/  2], step:[{step:5}/ 6500], loss: 10.7, lr: 1e-05 }}" for step in range(4)),
    ],
    "harmless levels of CANN": [
        f"[EVENT] HCCL{HEAD} [externalinput.cc:491][55]HCCL_CONNECT_TIMEOUT is set, timeOut[120]",
        f"[INFO] HCCL{HEAD} [t.cc:208][1]SetupAgent rankNum[8], rank[6], server[10.0.0.2%eth0], logicDevId[2]",
        f"[INFO] HCCL{HEAD} [heartbeat.cc:536] rank [10.0.0.1/2]: rank [10.0.0.2/5] status[LOST] by rank [10.0.0.2/6]",
        f"[WARNING] HCCL{HEAD} [hccl_socket.cc:355] [1]topo exchange server get socket timeout! timeout[59 s]",
        f"[INFO] HCCP{HEAD} [rs_ssl.c:1524]tid:1, rs_ssl_init(1524) : TLS SWITCH (0)",
        f"[WARNING] DRV{HEAD} [devdrv.c:1] halMemAlloc failed, trying again",
        f"[EVENT] HCCL{HEAD} [hcom.cc:1] error cqe status: 0x0",
        f"[WARNING] TDT{HEAD} [p.cpp:1] EE9999: last error was cleared",
        f"[INFO] HCCL{HEAD} [op_base.cc:489][1]HcclCommInitRootInfo success,take time [1]us, rankNum[8], rank[6]",
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_gives_no_alarm(tmp_path: Path, name: str) -> None:
    """No line of it is a sign of a failure."""
    (tmp_path / "worker_0.log").write_text("".join(f"{line}\n" for line in HEALTHY[name]))
    assert judge(read_sources(files_of(tmp_path)).cases) is None


def test_an_exception_with_a_step_of_another_rank_after_it_counts() -> None:
    """Ranks that share a log print a step or two until they wait for the one that failed."""
    assert len(scan([*STEPS[:2], *RAISED, *STEPS[2:4]]).raised) == 1
