"""Kubernetes: a launcher's pod and worker pods that join it; this machine submits them, follows and deletes them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from mslaunch.errors import MslaunchError, RequestError
from mslaunch.transports.base import CurrentJob, JobContext, JobState, Transport

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.plan.model import File, Plan
    from mslaunch.plan.spec import JobSpec
    from mslaunch.transports.base import Command
    from mslaunch.transports.kubernetes.api_server import JobObjects
    from mslaunch.transports.kubernetes.deletion_guard import Guard
    from mslaunch.transports.kubernetes.following import Following

_ASK_EVERY = 2.0
_PATIENCE = 60.0
_GRACE_MARGIN = 20.0
"""Seconds beyond the grace period in which a node has ended a container."""
_SETTLE_SECONDS = 20.0
"""Seconds in which the end of a launcher is read from its log."""
_OVER = ("Succeeded", "Failed")


class KubernetesQueue:
    """The API server as a queue: its jobs are a launcher's pod and worker pods."""

    label = "Kubernetes"

    def __init__(self) -> None:
        self._clusters: dict[str, JobObjects] = {}
        self._answers: dict[str, tuple[float, JobState | None]] = {}
        self._guard: Guard | None = None
        self._following: dict[str, Following] = {}

    def current_job(self, environment: Mapping[str, str]) -> CurrentJob | None:
        del environment
        return None  # the launcher in a pod waits for nodes that join it, and submits nothing

    def files(self, spec: JobSpec, plan: Plan, command: Command) -> list[File]:
        from mslaunch.transports.kubernetes.submission import job_files

        return job_files(spec, plan, command)

    def submit(self, run_dir: Path, secrets: Mapping[str, str] | None = None, /) -> str:
        import yaml

        from mslaunch.transports.kubernetes import manifests
        from mslaunch.transports.kubernetes.api_server import VOLCANO, JobName, JobObjects, connect, default_namespace
        from mslaunch.transports.kubernetes.deletion_guard import guarding
        from mslaunch.transports.kubernetes.submission import OBJECTS, further_objects

        objects = list(yaml.safe_load_all((run_dir / OBJECTS).read_text()))
        root = next(one for one in objects if one["kind"] == "Job")
        name = root["metadata"]["name"]
        context = root["metadata"].get("annotations", {}).get(manifests.CONTEXT)
        connect(context)
        namespace = root["metadata"].get("namespace") or default_namespace(context)
        job = JobName(namespace, name, root["apiVersion"].startswith(VOLCANO[0]), context)
        others = [one for one in objects if one is not root]
        others = [*further_objects(run_dir, root, secrets or {}), *others]
        mark = token_hex(8)
        annotations = {**root["metadata"].get("annotations", {}), manifests.SUBMISSION: mark}
        root = {**root, "metadata": {**root["metadata"], "annotations": annotations}}
        there = JobObjects(job)
        there.reach()  # before the guard has a job to delete
        with nullcontext(self._guard) if self._guard else guarding() as guard:
            guard.watch(str(job), mark)  # it also deletes what a failure leaves half made
            self._create(there, root, others)
            if guard is not self._guard:
                guard.release()
        return str(job)

    def _create(self, cluster: JobObjects, root: dict[str, Any], others: list[dict[str, Any]]) -> None:
        """Create the launcher's Job, then all that it owns."""
        made = cluster.create(root)
        owner = {key: made[key] for key in ("apiVersion", "kind")}
        owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        for one in others:
            metadata = {**one["metadata"], "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
            cluster.create({**one, "metadata": metadata})

    def submit_array(
        self,
        folder: Path,
        members: Mapping[int, Path],
        at_once: int | None,
        secrets: Mapping[str, str] | None = None,
        /,
    ) -> str:
        del folder, members, at_once, secrets
        raise RequestError("sweeps are not submitted to Kubernetes as one job. Submit the runs one by one.")

    def member(self, job: str, index: int) -> str:
        return f"{job}-{index}"

    def cancel_array(self, job: str) -> None:
        self.cancel(job)

    def state(self, job: str, since: float | None = None) -> JobState | None:
        asked, answer = self._answers.get(job, (0.0, None))
        if time.monotonic() - asked >= (_ASK_EVERY if since is None else since):
            answer = self._ask(job)
            self._answers[job] = (time.monotonic(), answer)
        return answer

    def _ask(self, job: str) -> JobState | None:
        from mslaunch.transports.kubernetes.api_server import NotFound

        try:
            cluster = self._cluster(job)
            root, pods = cluster.root(), cluster.pods()
            return _judge(cluster, root, pods)
        except NotFound:
            return JobState("stopped", "deleted")
        except MslaunchError:
            return None

    def is_queued(self, job: str) -> bool:
        del job
        return False  # a Job that has ended is not started again

    def find(self, run_id: str) -> str | None:
        del run_id
        return None  # its objects are deleted with a submitter that dies before it has written the id down

    def cancel(self, job: str) -> None:
        """End the launcher first, so that it ends the ranks and what it says is read; then end and delete the rest."""
        from mslaunch.transports.kubernetes.api_server import NotFound, part_of

        cluster = self._cluster(job)
        with suppress(NotFound):
            if cluster.hold():
                self._wait_for_containers(cluster, "launcher")
            readable = [pod for pod in cluster.pods(_PATIENCE) if part_of(pod) == "launcher" and _has_log(pod)]
            if readable and job in self._following:
                self._following[job].settle(_SETTLE_SECONDS)
        self.kill(job)

    def kill(self, job: str) -> None:
        """Delete everything; wait until no container of it runs: the objects go after them."""
        cluster = self._cluster(job)
        cluster.delete()
        self._wait_for_containers(cluster)
        self._answers.pop(job, None)

    def _wait_for_containers(self, cluster: JobObjects, part: str = "") -> None:
        """Wait until no container of the job's pods runs, or of those of one part."""
        from mslaunch.transports.kubernetes.api_server import part_of
        from mslaunch.transports.kubernetes.states import grace_of, has_stopped

        began = time.monotonic()
        while True:
            pods = [pod for pod in cluster.pods(_PATIENCE) if part in ("", part_of(pod))]
            late = time.monotonic() - began > grace_of(pods) + _GRACE_MARGIN
            if late or all(map(has_stopped, pods)):
                return
            time.sleep(0.3)

    def show_command(self, job: str, ended: bool = False) -> str:
        from mslaunch.transports.kubernetes.api_server import parse_job
        from mslaunch.transports.kubernetes.manifests import RUN_LABEL

        del ended
        name = parse_job(job)
        return shlex.join(("kubectl", "-n", name.namespace, "get", "pods", "-l", f"{RUN_LABEL}={name.name}"))

    def update(self, run_dir: Path, job: str) -> None:
        """Bring the run's folder up to date from the launcher's pod; a thread goes on with it."""
        from mslaunch.transports.kubernetes.following import Following

        known = self._following.get(job)
        if known is not None and (known.is_alive or known.has_ended):
            return
        self._following[job] = Following(run_dir, self._cluster(job))

    @contextmanager
    def guard(self, is_kept: bool) -> Iterator[None]:
        """Delete a job that is submitted inside the block at its end, and also if this process is killed meanwhile."""
        from mslaunch.transports.kubernetes.deletion_guard import guarding

        if is_kept:
            yield
            return
        with guarding() as guard:
            self._guard = guard
            try:
                yield
                with suppress(MslaunchError):  # where this fails, the guard tries again
                    self._cluster(guard.job).delete()  # the thread that does so too ends with this process
                    guard.release()
            finally:
                self._guard = None

    def _cluster(self, job: str) -> JobObjects:
        from mslaunch.transports.kubernetes.api_server import JobObjects, parse_job

        if job not in self._clusters:
            self._clusters[job] = JobObjects(parse_job(job))
        return self._clusters[job]


def _has_log(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has run, and can be asked what it has written."""
    from mslaunch.transports.kubernetes.states import is_on_lost_node

    return (pod.get("status") or {}).get("phase") not in (None, "Pending") and not is_on_lost_node(pod)


def _judge(cluster: JobObjects, root: Mapping[str, Any], pods: list[dict[str, Any]]) -> JobState:
    """How a job stands, from its launcher's Job and its pods."""
    from mslaunch.transports.kubernetes.api_server import part_of
    from mslaunch.transports.kubernetes.states import (
        has_stopped,
        is_being_deleted,
        phase_of_job,
        why_it_waits,
        why_pods_are_missing,
    )

    if is_being_deleted(root):
        if all(map(has_stopped, pods)):
            return JobState("stopped", "deleted")  # the objects go later
        return JobState("running", "Terminating", is_finishing=True)
    phases = [(part_of(pod), (pod.get("status") or {}).get("phase") or "Pending") for pod in pods]
    by_part = dict(phases)
    phase = by_part.get("launcher") or phase_of_job(root)
    if phase in _OVER:  # whoever follows the job is about to record how it ended
        return JobState("running", phase, is_finishing=True)
    for pod in pods:
        if why := why_it_waits(pod):
            return JobState("queued", "Pending", f"pod {pod['metadata']['name']}: {why}")
    parts = {"launcher": cluster.job.name, "worker": f"{cluster.job.name}-worker"}
    for part, name in {} if cluster.job.volcano else parts.items():
        if part not in by_part and (why := why_pods_are_missing(cluster.events(name))):
            return JobState("queued", "Pending", f"job {name}: {why}")
    waiting = not pods or any(phase == "Pending" for _, phase in phases)
    return JobState("queued" if waiting else "running", "Pending" if waiting else "Running")


class KubernetesTransport(Transport):
    """Pods that Kubernetes starts: the job is submitted, and its launcher waits for worker pods that join it."""

    name = "kubernetes"
    label = "Kubernetes"
    devices_advice = "Kubernetes gives the devices. Leave it out."
    queue = KubernetesQueue()

    def check_request(self, job: JobContext) -> None:
        if job.hosts:
            raise RequestError(f"{job.spec.sources['transport']}: Kubernetes chooses the hosts. Leave --hosts out.")

    def planned_hosts(self, job: JobContext) -> tuple[Host, ...]:
        from mslaunch.transports.kubernetes.submission import planned_hosts

        return planned_hosts(job.spec)

    def notes(self, job: JobContext) -> tuple[str, ...]:
        from mslaunch.transports.kubernetes.submission import describe_pods

        return (describe_pods(job.spec),)
