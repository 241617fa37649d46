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


_AGAIN = "Start the job again, or give --max-restarts."
ENDINGS = {
    "OOMKilled": Ending(
        "it used more memory than its limit (OOMKilled)", "Raise memory in launch.kubernetes.resources."
    ),
    "Evicted": Ending("its node evicted it (Evicted)", "Its node ran short: see the pod's message and its requests."),
    "EvictionByEvictionAPI": Ending("it was evicted, as draining its node does (EvictionByEvictionAPI)", _AGAIN),
    "TerminationByKubelet": Ending("its node ended it (TerminationByKubelet)", _AGAIN),
    "DeletionByTaintManager": Ending("a taint drove it from its node (DeletionByTaintManager)", _AGAIN),
    "DeletionByPodGC": Ending("its node is gone (DeletionByPodGC)", _AGAIN),
    "PreemptionByScheduler": Ending(
        "a pod of higher priority took its place (PreemptionByScheduler)", "Give launch.kubernetes.priority_class."
    ),
    "NodeLost": Ending("its node was lost (NodeLost)", _AGAIN),
    "NodeShutdown": Ending("its node was shut down (NodeShutdown)", _AGAIN),
    "Shutdown": Ending("its node was shut down (Shutdown)", _AGAIN),
    "Terminated": Ending("its node was shut down (Terminated)", _AGAIN),
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
"""By the reason of the pod, of its container, or of its condition DisruptionTarget (from version 1.26 on)."""
_DELETED = Ending("it was deleted, by somebody or with its node", _AGAIN)

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
_JOB_PHASES = {
    "Complete": "Succeeded",
    "Completed": "Succeeded",
    "Failed": "Failed",
    "Aborted": "Failed",
    "Terminated": "Failed",
}
"""By the condition of a Job, or the phase of one of Volcano."""
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")


def why_it_waits(pod: Pod) -> str:
    """Say in a clause why a pod does not run yet; empty where it runs, or is about to."""
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending"):
        return ""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return _unschedulable(str(scheduled.get("message") or scheduled.get("reason") or ""))
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


def first_ending(pods: Sequence[Pod], lost: str) -> dict[str, Any] | None:
    """What the verdict has to say of the first pod that Kubernetes ended, or of the lost host's pod."""
    found = [(pod, why) for pod in pods if (why := ending_of(pod)) is not None]
    if found:
        pod, ending = min(found, key=lambda one: _ended(one[0]))
        return _verdict(f"{pod['metadata']['name']} on {_node(pod)}", ending, (pod.get("status") or {}).get("message"))
    if not lost:
        return None
    own = [pod for pod in pods if pod["metadata"]["name"] == lost]
    if any(map(is_on_lost_node, own)):
        return _verdict(f"{lost} on {_node(own[0])}", ENDINGS["NodeLost"])
    return None if own and not own[0]["metadata"].get("deletionTimestamp") else _verdict(lost, _DELETED)


def _node(pod: Pod) -> str:
    return (pod.get("spec") or {}).get("nodeName") or "no node"


def _verdict(pod: str, ending: Ending, message: object = None) -> dict[str, Any]:
    told = f": {str(message)[:300]}" if message else ""
    return {
        "cause": "kubernetes",
        "summary": f"pod {pod} was ended: {ending.words}{told}.",
        "advice": ending.advice,
    }


def is_over(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def phase_of_job(root: Mapping[str, Any]) -> str:
    """Succeeded or Failed where a Job, or one of Volcano, is over; else empty."""
    status = root.get("status") or {}
    done = [one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"]
    words = {*done, (status.get("state") or {}).get("phase")}
    return next((phase for word, phase in _JOB_PHASES.items() if word in words), "")


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), {})


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
