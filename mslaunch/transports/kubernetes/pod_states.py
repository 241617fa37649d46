"""Why pods wait and why they ended: from what Kubernetes writes to the sentence that is shown, and to the record."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import ExitCode

Pod = Mapping[str, Any]


Ending = tuple[str, str]
"""Why a pod was ended, and what to do."""

_AGAIN = "Start the job again, or give --max-restarts."
ENDINGS = {
    "OOMKilled": ("it used more memory than its limit (OOMKilled)", "Raise memory in launch.kubernetes.resources."),
    "Evicted": ("its node evicted it (Evicted)", "Its node ran short: see the pod's message and its requests."),
    "EvictionByEvictionAPI": ("it was evicted, as draining its node does (EvictionByEvictionAPI)", _AGAIN),
    "TerminationByKubelet": ("its node ended it (TerminationByKubelet)", _AGAIN),
    "DeletionByTaintManager": ("a taint drove it from its node (DeletionByTaintManager)", _AGAIN),
    "DeletionByPodGC": ("its node is gone (DeletionByPodGC)", _AGAIN),
    "PreemptionByScheduler": (
        "a pod of higher priority took its place (PreemptionByScheduler)",
        "Give launch.kubernetes.priority_class.",
    ),
    "NodeLost": ("its node was lost (NodeLost)", _AGAIN),
    "NodeShutdown": ("its node was shut down (NodeShutdown)", _AGAIN),
    "Shutdown": ("its node was shut down (Shutdown)", _AGAIN),
    "Terminated": ("its node was shut down (Terminated)", _AGAIN),
    "Preempting": ("a pod of higher priority took its place", "Give launch.kubernetes.priority_class."),
    "DeadlineExceeded": ("its time was over (DeadlineExceeded)", "Raise activeDeadlineSeconds in the patch."),
    "UnexpectedAdmissionError": (
        "its node did not have the devices (UnexpectedAdmissionError)",
        "See the device plugin of the node.",
    ),
    "ContainerCannotRun": (
        "its command could not be started (ContainerCannotRun)",
        "The image needs mslaunch: launch.kubernetes.python.",
    ),
    "StartError": (
        "its command could not be started (StartError)",
        "The image needs mslaunch: launch.kubernetes.python.",
    ),
}
"""By the reason of the pod, of its container, or of its condition DisruptionTarget (from version 1.26 on)."""
_KILLED = "Something on its node killed it: see the node's kernel log, which names victims of too little memory."
_SIGNALLED = 128
_DELETED = ("it was deleted, by somebody or with its node", _AGAIN)

WAITING = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "InvalidImageName": "the name of its image is wrong",
    "CreateContainerConfigError": "something that it mounts or reads is missing",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "its container ends again and again",
    "ContainerCreating": "",
    "PodInitializing": "",
}
"""By the reason that a container waits for; an empty text is no trouble."""
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")


def why_it_waits(pod: Pod) -> str:
    """Say in a clause why a pod does not run yet; empty where it runs, or is about to."""
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending"):
        return ""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or scheduled.get("reason") or "")
        missing = sorted(set(_INSUFFICIENT.findall(message)))
        what = f"too little {', '.join(missing)} is free" if missing else "no node fits"
        return f"{what} ({message[:300]})"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        trouble = WAITING.get(reason, f"its container waits ({reason})")
        if reason and trouble:
            message = str(waiting.get("message") or "")[:300]
            return f"{trouble} ({reason}{': ' + message if message else ''})"
    return ""


def why_pods_are_missing(events: Iterable[Mapping[str, Any]]) -> str:
    """Say why a Job makes no pods, as its newest event has it: a quota, a limit, a missing account."""
    failed = [event for event in events if event.get("reason") == "FailedCreate"]
    if not failed:
        return ""
    message = str(failed[-1].get("message") or "")
    what = "a quota is used up" if "exceeded quota" in message else "Kubernetes refuses its pods"
    return f"{what} ({message[:300]})"


def ending_of(pod: Pod) -> Ending | None:
    """Why Kubernetes ended a pod; None where its own program ended it."""
    status = pod.get("status") or {}
    reasons = [str(one.get("reason") or "") for one in _terminated(pod)]
    reasons.append(str(status.get("reason") or ""))
    reasons.append(str(_condition(pod, "DisruptionTarget").get("reason") or ""))
    return next((ENDINGS[reason] for reason in reasons if reason in ENDINGS), None)


def is_on_lost_node(pod: Pod) -> bool:
    """Whether the node's controller has taken the pod for lost: it is not ready, and its kubelet gives no reason."""
    ready = _condition(pod, "Ready")
    is_running = (pod.get("status") or {}).get("phase") == "Running"
    return is_running and ready.get("status") in ("False", "Unknown") and not ready.get("reason")


def is_being_deleted(pod: Pod) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_over(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_stopped(pod: Pod) -> bool:
    """Whether no container of a pod runs, or can start: its object may stay for a while longer."""
    if is_over(pod) or is_on_lost_node(pod):
        return True
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    if states and all("terminated" in state for state in states):
        return True
    has_begun = status.get("phase") == "Running" or any("running" in state for state in states)
    return is_being_deleted(pod) and not has_begun


def first_ending(pods: Sequence[Pod], host: str, is_lost: bool, is_settled: bool = False) -> dict[str, Any] | None:
    """What the verdict has to say of the first pod that Kubernetes ended, or of a host that the launcher has lost.

    `host` is the one that the launcher's verdict names. None where there is nothing to say, or not yet; `is_settled`
    where no further news is expected.
    """
    own = next((pod for pod in pods if pod["metadata"]["name"] == host), None)
    ended = [(pod, ending) for pod in pods if (ending := ending_of(pod)) is not None]
    if own is not None and not is_settled and not is_over(own) and ending_of(own) is None:
        return _lost_ending(own, is_settled) if is_lost else None  # its status comes yet
    if ended:  # several may have ended within a second, the unit of these times: the launcher knows which was first
        pod, ending = min(ended, key=lambda one: (one[0] is not own, _ended(one[0])))
        return _verdict(pod, ending, (pod.get("status") or {}).get("message"))
    if not is_lost:
        return None
    return _lost_ending(own, is_settled) if own is not None else _verdict({"metadata": {"name": host}}, _DELETED)


def _lost_ending(pod: Pod, is_settled: bool) -> dict[str, Any] | None:
    """Why the launcher has lost a pod that Kubernetes gives no reason for."""
    if is_on_lost_node(pod):
        return _verdict(pod, ENDINGS["NodeLost"])
    if is_being_deleted(pod):  # by somebody, or by its Job since another pod has failed
        if has_stopped(pod):
            return _verdict(pod, _DELETED)
        return _verdict(pod, ENDINGS["NodeLost"]) if is_settled else None  # its node does not confirm it
    return container_ending(pod, exit_code_of(pod)) if is_over(pod) else None


def is_signalled(code: int) -> bool:
    """Whether an exit code stands for a signal that nobody sends to stop a job."""
    return code > _SIGNALLED and code - _SIGNALLED not in (signal.SIGINT, signal.SIGTERM)


def container_ending(pod: Pod, code: int) -> dict[str, Any]:
    """Say how the container of a pod ended, where neither Kubernetes nor its own program has said why."""
    how = f"its container ended with exit code {code}"
    if code <= _SIGNALLED:
        return _verdict(pod, (f"{how}, and did not say why", _AGAIN))
    with suppress(ValueError):
        how += f" ({signal.Signals(code - _SIGNALLED).name})"
    return _verdict(pod, (f"{how}; Kubernetes gives no reason", _KILLED))


def _verdict(pod: Pod, ending: Ending, message: object = None) -> dict[str, Any]:
    name, node = pod["metadata"]["name"], (pod.get("spec") or {}).get("nodeName")
    place = f"{name} on {node}" if node else name
    more = f": {str(message)[:300]}" if message else ""
    return {
        "cause": "kubernetes",
        "host": name,
        "summary": f"pod {place} was ended: {ending[0]}{more}.",
        "advice": ending[1],
    }


def phase_of_job(root: Mapping[str, Any]) -> str:
    """Succeeded or Failed where a Job, or one of Volcano, is over; else empty."""
    status = root.get("status") or {}
    done = [row.get("type") for row in status.get("conditions") or () if row.get("status") == "True"]
    reasons = {*done, (status.get("state") or {}).get("phase")}  # Volcano has a phase, and no conditions
    if reasons & {"Complete", "Completed"}:
        return "Succeeded"
    return "Failed" if reasons & {"Failed", "Aborted", "Terminated"} else ""


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _terminated(pod: Pod) -> list[Mapping[str, Any]]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return [(container.get("state") or {}).get("terminated") or {} for container in containers]


def exit_code_of(pod: Pod) -> int:
    """The exit code of a pod that failed."""
    codes = [int(one["exitCode"]) for one in _terminated(pod) if "exitCode" in one]
    return next((code for code in codes if code), 1)


def _ended(pod: Pod) -> str:
    times = [str(one.get("finishedAt") or "") for one in _terminated(pod)]
    return max(times, default="") or "9"


OVER = ("succeeded", "failed", "stopped", "lost")
_SHOWN = 3

Record = dict[str, Any]


def read_record(content: bytes) -> Record | None:
    """The record in a file that a pod has written; None where it is no object of JSON."""
    try:
        raw = parse_json(content)
    except Unreadable:
        return None
    return raw if isinstance(raw, dict) else None


def blamed_host(record: Record) -> tuple[str, bool]:
    """The host that the launcher's verdict names, and whether it was lost."""
    verdict = record.get("verdict")
    if not isinstance(verdict, dict):
        return "", False
    host = str(verdict.get("host") or "")
    return host, bool(host) and verdict.get("cause") == "host lost"


def describe_missing(missing: Mapping[str, int]) -> str:
    """Say which bytes never came; empty where all did."""
    if not missing:
        return ""
    names = [f"{count} bytes of {name}" for name, count in sorted(missing.items())]
    more = f" and of {len(names) - _SHOWN} other files" if len(names) > _SHOWN else ""
    return (
        f"missing here: {', '.join(names[:_SHOWN])}{more}. The node had rotated the log of the launcher's pod before "
        "they were read. Use launch.kubernetes.runs_claim for jobs that print much."
    )


def concluded(record: Record, exit_code: int, ending: Mapping[str, Any] | None, last_lines: str) -> Record:
    """The record of a run that is over: what its launcher has written, and why Kubernetes ended a pod."""
    state = record.get("state")
    now = _iso(datetime.now(timezone.utc))
    if state not in OVER:  # the launcher ended before the run began, or was ended itself
        state = "failed" if exit_code else "succeeded"
        if exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            state = "stopped"
        record = {**record, "state": state, "exit_code": exit_code, "ended": now}
        if state == "failed" and ending is None:
            record["verdict"] = {"cause": "not ready", "summary": last_lines, "exit_code": exit_code}
    rows = _rank_rows(record)
    for row in rows:  # all have ended with it, also those whose end nobody has seen
        if not row.get("ended"):
            row["ended"] = record.get("ended") or now
            row["stopped"] = state == "stopped" and bool(row.get("started"))
    record = {**record, "ranks": rows}
    if ending is None or state == "succeeded":
        return record
    return {**record, "state": "failed", "verdict": {**_same_host(record.get("verdict"), ending), **ending}}


def _rank_rows(record: Record) -> list[Record]:
    ranks = record.get("ranks")
    return [dict(row) for row in ranks if isinstance(row, dict)] if isinstance(ranks, list) else []


def with_starts(record: Record, events: Iterable[bytes]) -> Record:
    """The record, with the ranks that have started according to the events: a launcher writes those sooner."""
    starts: dict[str, Record] = {}
    for line in events:
        if b'"started"' not in line and b'"restart"' not in line:
            continue
        event = read_record(line) or {}
        if event.get("ev") == "restart":
            starts.clear()
        if event.get("ev") == "started" and event.get("role") == "worker":
            with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
                started = datetime.fromtimestamp(float(event["time"]), timezone.utc)
                starts[str(int(event["rank"]))] = {"pid": int(event["pid"]), "started": _iso(started)}
    rows = _rank_rows(record)
    for row in rows:
        if not row.get("started"):
            row.update(starts.get(str(row.get("rank")), {}))
    return {**record, "ranks": rows}


def _iso(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds")


def _same_host(verdict: Any, ending: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the launcher's verdict says of the pod that Kubernetes ended; of another one, the exit code only."""
    known = verdict if isinstance(verdict, dict) else {}
    if ending.get("host") in (None, known.get("host")):
        return known
    return {"exit_code": known.get("exit_code")}
