"""Why pods wait and why they ended: one table from what Kubernetes writes to the sentence that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a pod was ended."""

    words: str
    advice: str


ENDINGS = {
    "OOMKilled": Ending(
        "it used more memory than its limit (OOMKilled)", "Raise memory in launch.kubernetes.resources."
    ),
    "Evicted": Ending("its node evicted it (Evicted)", "Its node ran short: see the pod's message and its requests."),
    "NodeLost": Ending("its node was lost (NodeLost)", "Start the job again, or give --max-restarts."),
    "NodeShutdown": Ending("its node was shut down (NodeShutdown)", "Start the job again, or give --max-restarts."),
    "Shutdown": Ending("its node was shut down (Shutdown)", "Start the job again, or give --max-restarts."),
    "Terminated": Ending("its node was shut down (Terminated)", "Start the job again, or give --max-restarts."),
    "Preempting": Ending("a pod of higher priority took its place", "Give launch.kubernetes.priority_class."),
    "DeadlineExceeded": Ending("its time was over (DeadlineExceeded)", "Raise activeDeadlineSeconds in the patch."),
    "UnexpectedAdmissionError": Ending(
        "its node did not have the devices (UnexpectedAdmissionError)", "See the device plugin of the node."
    ),
    "ContainerCannotRun": Ending(
        "its command could not be started (ContainerCannotRun)", "The image needs mslaunch: launch.kubernetes.python."
    ),
    "StartError": Ending(
        "its command could not be started (StartError)", "The image needs mslaunch: launch.kubernetes.python."
    ),
}
"""By the reason of the pod, or that of its container."""

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
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+)")


def why_it_waits(pod: Pod) -> str:
    """Say in a clause why a pod does not run yet; empty where it runs, or is about to."""
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending"):
        return ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _unschedulable(str(condition.get("message") or condition.get("reason") or ""))
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        words = WAITING.get(reason, f"its container waits ({reason})" if reason else "")
        if words:
            message = str(waiting.get("message") or "")[:300]
            return f"{words} ({reason}{': ' + message if message else ''})"
    return ""


def _unschedulable(message: str) -> str:
    missing = sorted(set(_INSUFFICIENT.findall(message)))
    what = f"too little {', '.join(missing)} is free" if missing else "no node fits"
    return f"{what} ({message[:300]})"


def why_pods_are_missing(events: Iterable[Mapping[str, Any]]) -> str:
    """Say why a Job makes no pods, as its newest event has it: a quota, a limit, a missing account."""
    failed = [event for event in events if event.get("reason") == "FailedCreate"]
    if not failed:
        return ""
    message = str(failed[-1].get("message") or "")
    what = "a quota is used up" if "exceeded quota" in message else "Kubernetes refuses its pods"
    return f"{what} ({message[:300]})"


def ending_of(pod: Pod) -> tuple[str, Ending] | None:
    """Why Kubernetes ended a pod, with the sentence; None where its own program ended it."""
    status = pod.get("status") or {}
    terminated = [
        (container.get("state") or {}).get("terminated") or {} for container in status.get("containerStatuses") or ()
    ]
    reasons = [str(one.get("reason") or "") for one in terminated]
    for reason in (*reasons, str(status.get("reason") or "")):
        if reason in ENDINGS:
            return reason, ENDINGS[reason]
    return None


def first_ending(pods: Sequence[Pod]) -> dict[str, Any] | None:
    """The verdict for the first pod that Kubernetes ended, as far as it differs from the launcher's own."""
    found = [(pod, why) for pod in pods if (why := ending_of(pod)) is not None]
    if not found:
        return None
    pod, (_, ending) = min(found, key=lambda one: _ended(one[0]))
    node = (pod.get("spec") or {}).get("nodeName") or "no node"
    message = str((pod.get("status") or {}).get("message") or "")[:300]
    told = f": {message}" if message else ""
    summary = f"pod {pod['metadata']['name']} on {node} was ended: {ending.words}{told}."
    return {"cause": "kubernetes", "summary": summary, "advice": ending.advice}


def _ended(pod: Pod) -> str:
    times = [
        ((container.get("state") or {}).get("terminated") or {}).get("finishedAt") or ""
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max(times, default="") or "9"
