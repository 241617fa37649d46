"""What the submitter makes of a pod's log and of the states of pods, without a control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mslaunch.documents.typed import make
from mslaunch.run.record import RankRecord
from mslaunch.transports.kubernetes.frames import PIECE, Frame, Scan, encode
from mslaunch.transports.kubernetes.mirror import GAP, Mirror, locked
from mslaunch.transports.kubernetes.pod_states import (
    ENDINGS,
    blamed_host,
    concluded,
    describe_missing,
    first_ending,
    has_stopped,
    why_it_waits,
    with_starts,
)

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
        found = first_ending([pod("w-0", phase="Running"), pod("w-1", **status)], "", is_lost=False)
        assert found is not None
        assert found["summary"].startswith("pod w-1 on n1 was ended: ")


def test_a_pod_that_was_deleted_is_the_cause() -> None:
    """Only where the launcher has lost that very host."""
    assert first_ending([pod("w-0", phase="Running")], "w-1", is_lost=True) == {
        "cause": "kubernetes",
        "host": "w-1",
        "summary": "pod w-1 was ended: it was deleted, by somebody or with its node.",
        "advice": "Start the job again, or give --max-restarts.",
    }
    assert blamed_host({**FAILED}) == ("w-1", True)
    assert blamed_host({"verdict": {"cause": "exception", "host": "w-1"}}) == ("w-1", False)


def terminated(reason: str, code: int, second: int = 0) -> dict[str, Any]:
    end = {"reason": reason, "exitCode": code, "finishedAt": f"2026-01-01T00:00:0{second}Z"}
    return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": end}}]}


RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
LOST = {**RUNNING, "conditions": [{"type": "Ready", "status": "False"}]}


def deleted(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def test_a_killed_container_is_named_with_its_signal() -> None:
    """Kubernetes writes `Error` and the exit code only; a host that is not lost ended with the run."""
    pods = [pod("w-0", **terminated("Error", 125)), pod("w-1", **terminated("Error", 137))]
    ending = first_ending(pods, "w-1", is_lost=True)
    assert ending is not None
    assert ending["summary"] == (
        "pod w-1 on n1 was ended: its container ended with exit code 137 (SIGKILL); Kubernetes gives no reason."
    )
    assert "kernel log" in ending["advice"]
    assert first_ending(pods, "", is_lost=False) is None


def test_the_pod_that_the_launcher_lost_first_is_the_one_that_is_named() -> None:
    """Two pods were out of memory in the same second; rank and host of the verdict are of the pod that it names."""
    pods = [pod("w-0", **terminated("OOMKilled", 137, 1)), pod("w-1", **terminated("OOMKilled", 137, 1))]
    for is_lost in (True, False):  # or the launcher has seen the signal of a rank
        ending = first_ending(pods, "w-1", is_lost)
        assert ending is not None
        assert ending["summary"].startswith("pod w-1 on n1 was ended: it used more memory")
    assert first_ending([pods[0], pod("w-1", **RUNNING)], "w-1", is_lost=False) is None  # its status comes later
    assert concluded(FAILED, 1, ending, "")["verdict"]["rank"] == 3
    other = first_ending(pods[:1], "w-1", is_lost=True)
    verdict = concluded(FAILED, 1, other, "")["verdict"]
    assert (verdict["host"], verdict.get("rank")) == ("w-0", None)


def test_a_pod_that_its_job_deletes_on_a_lost_node_is_lost_with_its_node() -> None:
    """Another pod has failed first; whether somebody has deleted this one is known once its containers have ended."""
    assert first_ending([deleted(pod("w-1", **RUNNING))], "w-1", is_lost=True) is None
    outcomes = [
        first_ending([deleted(pod("w-1", **RUNNING))], "w-1", is_lost=True, is_settled=True),
        first_ending([deleted(pod("w-1", **LOST))], "w-1", is_lost=True),
        first_ending(
            [deleted(pod("w-1", phase="Running", containerStatuses=[{"state": {"terminated": {}}}]))],
            "w-1",
            is_lost=True,
        ),
    ]
    words = ["NodeLost", "NodeLost", "it was deleted"]
    assert [word in str(ending) for word, ending in zip(words, outcomes, strict=True)] == [True] * 3


def test_a_pod_has_stopped_when_its_containers_have() -> None:
    """Its object stays for seconds, and on a lost node for ever; one that is deleted before it begins never does."""
    waiting = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    stopped = [
        pod("w", **terminated("Error", 1)),
        pod("w", **LOST),
        deleted(pod("w", phase="Running", containerStatuses=[{"state": {"terminated": {}}}])),
        deleted(pod("w", **waiting)),
        deleted(pod("w", phase="Pending")),
    ]
    going_on = [pod("w", **RUNNING), deleted(pod("w", **RUNNING)), pod("w", **waiting), pod("w", phase="Pending")]
    assert [has_stopped(one) for one in (*stopped, *going_on)] == [True] * len(stopped) + [False] * len(going_on)


RANKS = [
    {"rank": 0, "host": "w-0", "device_id": None, "started": "2026-01-01T00:00:00+00:00", "ended": None},
    {"rank": 1, "host": "w-1", "device_id": None, "started": None, "ended": None},
]


def states(record: dict[str, Any]) -> list[str]:
    return [make(RankRecord, row).state for row in record["ranks"]]


def test_ranks_end_with_their_launcher() -> None:
    """One that was killed could not record it; a rank that had not started did not end, and does not wait either."""
    record = concluded({"state": "running", "ranks": RANKS}, 137, {"cause": "kubernetes"}, "waiting at :29400")
    assert [row["ended"] for row in record["ranks"]] == [record["ended"]] * 2
    assert states(record) == ["gone", "not started"]
    assert "summary" not in record["verdict"]
    assert states(concluded({"state": "running", "ranks": RANKS}, 143, None, "")) == ["stopped", "not started"]


def test_a_rank_that_started_after_the_last_record_is_known_from_the_events() -> None:
    """A launcher writes an event at once and its record twice a second; starts of an earlier attempt are not used."""
    start = {"ev": "started", "role": "worker", "rank": 1, "pid": 7, "time": 1_767_225_601.5}
    restart = {"ev": "restart", "attempt": 1}
    hostile = ({**start, "rank": None}, {**start, "pid": "x"}, {**start, "time": 1e300}, {**start, "role": "scheduler"})
    for events, expected in (
        ([start], "gone"),
        ([start, restart], "not started"),
        ([start, restart, start], "gone"),
        (hostile, "not started"),
    ):
        lines = [b"no event\n", *(f"{json.dumps(event)}\n".encode() for event in events)]
        record = concluded(with_starts({"state": "running", "ranks": RANKS}, lines), 125, {"cause": "kubernetes"}, "")
        assert states(record) == ["gone", expected], events
    assert (with_starts({"ranks": RANKS}, [json.dumps(start).encode()])["ranks"][1]) == {
        **RANKS[1],
        "pid": 7,
        "started": "2026-01-01T00:00:01.500+00:00",
    }


def copied(tmp_path: Path, size: int, is_rotated: bool) -> tuple[Path, Path]:
    """What a reader makes of a pod's log, or of what is left of it after a rotation; and the run's folder there."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (there / "rank_0").mkdir(parents=True)
    (there / "run.json").write_text(json.dumps({"state": "succeeded", "exit_code": 0}))
    (there / "rank_0" / "log.txt").write_bytes(b"".join(b"line %06d\n" % number for number in range(size // 12)))
    (there / "rank_0" / "log.times").write_text("0 0\n")
    (there / "events.jsonl").write_text("".join(f'{{"ev": "x", "n": {number}}}\n' for number in range(size // 20)))
    scan = Scan(there, there / "none")
    first, rest = lines(*scan.new()), lines(*scan.tails(), scan.end(0))
    with locked(here) as mirror:
        assert mirror is not None
        mirror.feed("p", rest if is_rotated else [*first, *rest])
        assert mirror.exit_code == 0
        assert mirror.final is not None
        mirror.close({**mirror.final, "notes": [describe_missing(mirror.missing())]})
    return here, there


def test_a_log_that_was_rotated_has_its_end_and_names_the_gap(tmp_path: Path) -> None:
    """No byte of it is made up; times of lines, which count bytes, are left out, and events stay readable."""
    here, there = copied(tmp_path, 300 << 10, is_rotated=True)
    log, whole = ((folder / "rank_0" / "log.txt").read_bytes() for folder in (here, there))
    gap, _, rest = log.partition(b"\n")
    assert gap.decode() == GAP.format(len(whole) - len(rest))
    assert whole.endswith(rest)
    assert len(rest) > 8 << 10
    assert not (here / "rank_0" / "log.times").exists()
    first = json.loads((here / "events.jsonl").read_text().splitlines()[0])
    assert (first["ev"], "bytes of events.jsonl are missing" in first["text"]) == ("note", True)
    (note,) = json.loads((here / "run.json").read_text())["notes"]
    assert f"{len(whole) - len(rest)} bytes of rank_0/log.txt" in note
    assert "launch.kubernetes.runs_claim" in note


def test_what_is_sent_twice_is_written_once(tmp_path: Path) -> None:
    """Nothing is missing then, and readers who follow a file see no byte twice."""
    here, there = copied(tmp_path, 100 << 10, is_rotated=False)
    names = ("rank_0/log.txt", "rank_0/log.times", "events.jsonl")
    assert [(here / name).read_bytes() == (there / name).read_bytes() for name in names] == [True] * 3
    assert json.loads((here / "run.json").read_text())["notes"] == [""]


def test_a_gap_in_the_middle_is_a_line_of_its_own(tmp_path: Path) -> None:
    """Later readers, which are other processes, go on behind it; a file of the next attempt begins anew."""
    first = Frame(1, "launcher.log", -1, b"half a li", inode=7)
    later = Frame(9, "launcher.log", 100, b"ne\nnext\n", inode=7)
    feed(tmp_path, "p", first)
    feed(tmp_path, "p", later)
    feed(tmp_path, "p", Frame(10, "launcher.log", 105, b"xt\nlast\n", inode=7))
    assert (tmp_path / "launcher.log").read_text() == f"half a li\n{GAP.format(91)}\nne\nnext\nlast\n"
    feed(tmp_path, "p", Frame(11, "launcher.log", 20, b"again\n", inode=8))
    assert (tmp_path / "launcher.log").read_text() == f"{GAP.format(20)}\nagain\n"


def test_small_files_are_sent_again(tmp_path: Path) -> None:
    """Whoever reads the newest part of a pod's log has them; a log that has grown large is not among them."""
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "rank_0" / "env.log").write_text("A=1\n")
    (tmp_path / "rank_0" / "log.txt").write_bytes(b"x" * (PIECE + 1))
    scan = Scan(tmp_path, tmp_path / "none")
    assert {frame.file for frame in scan.new()} == {"plan.json", "rank_0/env.log", "rank_0/log.txt"}
    assert {frame.file for frame in scan.small()} == {"plan.json", "rank_0/env.log"}
    assert list(scan.new()) == []


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
