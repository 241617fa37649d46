"""Reading many logs: packed, rotated, broken, in processes; each once, and what cannot be read is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs import reading
from mslaunch.diagnose.logs.sources import files_of, logs_among
from tests.beds.hccl_logs import Job
from tests.conftest import Bench

FAILURE = "Traceback (most recent call last):\nValueError: loss is NaN\n"


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("rank_0/log.txt", True),
        ("worker_0.log.1", True),
        ("worker_0.log.2.gz", True),
        ("worker_0.log-20260301", True),
        ("out.err", True),
        ("var/log/messages", True),
        ("messages-20260301.gz", True),
        ("dmesg", True),
        ("rank_0/log.0.txt", False),
        ("rank_0/env.log", False),
        ("rank_0/stack.txt", False),
        ("code/notes.txt", False),
        ("scripts/setup.log", False),
        ("model.ckpt", False),
        ("archive.gz", False),
    ],
)
def test_which_files_are_logs(tmp_path: Path, name: str, is_read: bool) -> None:
    """Output, rotated and packed, CANN's logs and the kernel's; not what an earlier attempt or the code is."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x\n")
    assert [source.name for source in logs_among(files_of(tmp_path))] == ([name] if is_read else [])


def test_a_packed_log_is_read_like_any_other(tmp_path: Path) -> None:
    """Its lines have their numbers, and text that is not UTF-8 hides nothing."""
    data = b"\xff\xfe\n" * 9 + FAILURE.encode()
    (tmp_path / "worker_3.log.gz").write_bytes(gzip.compress(data))
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert (verdict.rank, verdict.line, verdict.summary) == (3, 10, "ValueError: loss is NaN")


def test_a_packed_log_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """What came before the break counts, and the break is a note."""
    packed = gzip.compress(FAILURE.encode() + bytes(range(256)) * 4000, 1)
    (tmp_path / "worker_3.log.gz").write_bytes(packed[:-2000])
    evidence = read_sources(files_of(tmp_path))
    verdict = judge(evidence.cases)
    assert verdict is not None
    assert verdict.summary == "ValueError: loss is NaN"
    assert ["not read to its end" in note for note in evidence.notes] == [True]


def test_a_log_that_cannot_be_read_is_a_note(bench: Bench) -> None:
    """The others are read."""
    bench.write("logs/worker_0.log", FAILURE)
    bench.write("logs/worker_1.log.gz", "this is not packed\n")
    done = bench.mslaunch("diagnose", "logs")
    assert "First to fail: rank 0" in done.stdout
    assert "worker_1.log.gz: not read to its end: Not a gzipped file" in done.stderr


def test_processes_and_one_process_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is chosen by the size of the logs makes no difference."""
    job = Job(tmp_path, 24)
    for rank in range(23):
        job.waits(rank, rank + 1)
    sources = list(logs_among(files_of(job.write())))
    alone = reading.read_logs(sources)
    monkeypatch.setattr(reading, "_WORTH_PROCESSES", 0)
    told: list[tuple[int, int]] = []
    assert reading.read_logs(sources, lambda done, total: told.append((done, total))) == alone
    assert told[-1] == (sum(source.size for source in sources),) * 2


def test_a_cause_is_found_wherever_in_a_large_log_it_stands(tmp_path: Path) -> None:
    """Logs are read whole, not at their end only."""
    with (tmp_path / "worker_0.log").open("w") as file:
        file.write("EJ0002: The environment is abnormal: the NPU network port is down.\n")
        for _ in range(20):
            file.write("loss: 0.5 step: 3\n" * 40000)
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert (verdict.pattern, verdict.line) == ("npu-port-down", 1)


def test_one_log_can_be_named(bench: Bench) -> None:
    """No folder is needed around it."""
    bench.write("train_rank7.log", FAILURE)
    assert "First to fail: rank 7" in bench.mslaunch("diagnose", "train_rank7.log").stdout
