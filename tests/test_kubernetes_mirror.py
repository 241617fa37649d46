"""What the submitter makes of a pod's log and of the states of pods, without a control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mslaunch.transports.kubernetes.endings import concluded, lost_host
from mslaunch.transports.kubernetes.frames import PIECE, Frame, Scan, encode
from mslaunch.transports.kubernetes.mirror import Mirror, locked
from mslaunch.transports.kubernetes.states import ENDINGS, first_ending, why_it_waits

FAILED = {"state": "failed", "transport": "join", "verdict": {"cause": "host lost", "host": "w-1", "rank": 3}}


def lines(*frames: Frame) -> list[bytes]:
    return [encode(frame).encode() for frame in frames]


def piece(number: int, file: str, data: bytes) -> Frame:
    return Frame(number, file, -1, data)


def feed(folder: Path, pod: str, *frames: Frame, is_whole: bool = True) -> tuple[Mirror, bool]:
    with locked(folder) as mirror:
        assert mirror is not None
        return mirror, mirror.feed(pod, lines(*frames), is_whole)


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": "n1"}, "status": status}


def test_an_ended_record_is_held_back_until_the_pods_were_looked_at(tmp_path: Path) -> None:
    """Nobody sees `host lost` before it is known that the pod was out of memory; a reader may be killed."""
    ended = piece(2, "run.json", json.dumps(FAILED).encode())
    feed(tmp_path, "p", piece(1, "run.json", b'{"state": "running"}'), ended)
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "running"
    with locked(tmp_path) as mirror:
        assert mirror is not None
        mirror.feed("p", lines(ended))
        assert mirror.final is not None
        mirror.close(concluded(mirror.final, 1, {"cause": "kubernetes"}, ""))
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["state"], record["transport"]) == ("failed", "kubernetes")
    assert record["verdict"] == {"cause": "kubernetes", "host": "w-1", "rank": 3}


def test_a_launcher_in_another_pod_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Its pieces are counted anew."""
    feed(tmp_path, "first", piece(1, "launcher.log", b"old"), piece(2, "events.jsonl", b"{}\n"))
    feed(tmp_path, "second", piece(1, "launcher.log", b"new"))
    assert (tmp_path / "launcher.log").read_text() == "new"


def test_a_gap_in_a_part_of_a_log_is_noticed(tmp_path: Path) -> None:
    """Nothing behind it is written, so that the whole log can be read."""
    feed(tmp_path, "p", piece(1, "launcher.log", b"a"))
    _, is_missing = feed(tmp_path, "p", piece(3, "events.jsonl", b"{}"), is_whole=False)
    assert is_missing
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_records_of_any_size_arrive(tmp_path: Path, size: int) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    record = b'{"state": "running", "x": "'
    record += b"y" * (size - len(record) - 2) + b'"}'
    (there / "run.json").write_bytes(record)
    feed(here, "p", *Scan(there, there / "none").new())
    assert json.loads((here / "run.json").read_text())["x"] == json.loads(record)["x"]


@pytest.mark.parametrize("content", [b"[" * 5000, b"7", b"\xff", b'{"state": {}}'])
def test_a_record_that_is_none_harms_nobody(tmp_path: Path, content: bytes) -> None:
    mirror, _ = feed(tmp_path, "p", piece(1, "run.json", content))
    assert mirror.final is None


@pytest.mark.parametrize("reason", sorted(ENDINGS))
def test_every_reason_of_kubernetes_is_a_sentence(reason: str) -> None:
    """It stands at the pod, at its container, or at a condition."""
    container = {"state": {"terminated": {"reason": reason, "exitCode": 137}}}
    shapes: list[dict[str, Any]] = [
        {"phase": "Failed", "reason": reason},
        {"phase": "Failed", "containerStatuses": [container]},
        {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]},
    ]
    for status in shapes:
        found = first_ending([pod("w-0", phase="Running"), pod("w-1", **status)], "")
        assert found is not None
        assert found["summary"].startswith("pod w-1 on n1 was ended: ")


def test_a_pod_that_was_deleted_is_the_cause() -> None:
    """Only where the launcher has lost that very host."""
    assert first_ending([pod("w-0", phase="Running")], "w-1") == {
        "cause": "kubernetes",
        "summary": "pod w-1 was ended: it was deleted, by somebody or with its node.",
        "advice": "Start the job again, or give --max-restarts.",
    }
    assert first_ending([pod("w-1", phase="Failed")], "w-1") is None
    assert lost_host({**FAILED}) == "w-1"
    assert lost_host({"verdict": {"cause": "exception", "host": "w-1"}}) == ""


def test_a_missing_resource_is_named_as_it_is_called() -> None:
    message = "0/2 nodes are available: 2 Insufficient huawei.com/Ascend910."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    assert why_it_waits(pod("w", phase="Pending", conditions=[condition])) == (
        f"too little huawei.com/Ascend910 is free ({message})"
    )


def test_a_launcher_that_kubernetes_evicted_has_failed() -> None:
    """It took the signal for a request to stop."""
    record = concluded({"state": "stopped"}, 143, {"cause": "kubernetes", "summary": "evicted"}, "")
    assert (record["state"], record["verdict"]["summary"]) == ("failed", "evicted")
