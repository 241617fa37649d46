"""Kubernetes: a launcher's pod and worker pods that join it; this machine submits them, follows and deletes them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from mslaunch.errors import MslaunchError, RequestError
from mslaunch.transports.base import Command, JobContext, JobQueue, JobState, Transport
from mslaunch.transports.kubernetes import api_server, manifests, pod_states
from mslaunch.transports.kubernetes.deletion_guard import Guard, guarding
from mslaunch.transports.kubernetes.following import Following

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.plan.model import File, Plan
    from mslaunch.plan.spec import JobSpec

_ASK_EVERY = 2.0
_PATIENCE = 60.0
_GRACE_MARGIN = 20.0
"""Seconds beyond the grace period in which a node has ended a container."""
_SETTLE_SECONDS = 20.0
"""Seconds in which the end of a launcher is read from its log."""


class KubernetesQueue(JobQueue):
    """The API server as a queue: its jobs are a launcher's pod and worker pods."""

    label = "Kubernetes"

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, JobState | None]] = {}
        self._guard: Guard | None = None
        self._following: dict[str, Following] = {}

    def files(self, spec: JobSpec, plan: Plan, command: Command) -> list[File]:
        return manifests.job_files(spec, plan, command)

    def submit(self, run_dir: Path, secrets: Mapping[str, str] | None = None, /) -> str:
        import yaml

        objects = list(yaml.safe_load_all((run_dir / manifests.OBJECTS).read_text()))
        root = next(body for body in objects if body["kind"] == "Job")
        objects.remove(root)
        metadata = root["metadata"]
        annotations = metadata.setdefault("annotations", {})
        context = annotations.get(manifests.CONTEXT)
        api_server.connect(context)
        namespace = metadata.get("namespace") or api_server.default_namespace(context)
        job = api_server.JobName(
            namespace, metadata["name"], root["apiVersion"].startswith(api_server.VOLCANO[0]), context
        )
        objects = [*manifests.further_objects(run_dir, root, secrets or {}), *objects]
        annotations[manifests.SUBMISSION] = mark = token_hex(8)
        cluster = api_server.JobObjects(job)
        cluster.reach()  # before the guard has a job to delete
        with nullcontext(self._guard) if self._guard else guarding() as guard:
            guard.watch(str(job), mark)  # it also deletes what a failure leaves half made
            created = cluster.create(root)
            owner = {"apiVersion": created["apiVersion"], "kind": created["kind"], "blockOwnerDeletion": True}
            owner |= {key: created["metadata"][key] for key in ("name", "uid")}
            for body in objects:
                cluster.create({**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}})
            if guard is not self._guard:
                guard.watch("")
        return str(job)

    def state(self, job: str, since: float | None = None) -> JobState | None:
        answered_at, answer = self._answers.get(job, (0.0, None))
        if time.monotonic() - answered_at < (_ASK_EVERY if since is None else since):
            return answer
        try:
            answer = _judge(_cluster(job))
        except api_server.NotFound:
            answer = JobState("stopped", "deleted")
        except MslaunchError:
            answer = None
        self._answers[job] = (time.monotonic(), answer)
        return answer

    def cancel(self, job: str) -> None:
        """End the launcher first, so that it ends the ranks and what it says is read; then end and delete the rest."""
        cluster = _cluster(job)
        with suppress(api_server.NotFound):
            if cluster.hold():
                _wait_for_containers(cluster, "launcher")
            for pod in cluster.pods(_PATIENCE):
                has_log = (pod.get("status") or {}).get("phase") not in (
                    None,
                    "Pending",
                ) and not pod_states.is_on_lost_node(pod)
                if api_server.part_of(pod) == "launcher" and has_log and job in self._following:
                    self._following[job].settle(_SETTLE_SECONDS)
                    break
        self.kill(job)

    def kill(self, job: str) -> None:
        """Delete everything; wait until no container of it runs: the objects go after them."""
        cluster = _cluster(job)
        cluster.delete()
        _wait_for_containers(cluster)
        self._answers.pop(job, None)

    def show_command(self, job: str, ended: bool = False) -> str:
        del ended
        name = api_server.parse_job(job)
        label = f"{manifests.RUN_LABEL}={name.name}"
        return shlex.join(("kubectl", "-n", name.namespace, "get", "pods", "-l", label))

    def update(self, run_dir: Path, job: str) -> None:
        """Bring the run's folder up to date from the launcher's pod; a thread goes on with it."""
        following = self._following.get(job)
        if following is None or not (following.thread.is_alive() or following.has_ended):
            self._following[job] = Following(run_dir, _cluster(job))

    @contextmanager
    def guard(self, is_kept: bool) -> Iterator[None]:
        """Delete a job that is submitted inside the block at its end, and also if this process is killed meanwhile."""
        if is_kept:
            yield
            return
        with guarding() as guard:
            self._guard = guard
            try:
                yield
                with suppress(MslaunchError):  # where this fails, the guard tries again
                    _cluster(guard.job).delete()  # the thread that does so too ends with this process
                    guard.watch("")
            finally:
                self._guard = None


@cache
def _cluster(job: str) -> api_server.JobObjects:
    return api_server.JobObjects(api_server.parse_job(job))


def _wait_for_containers(cluster: api_server.JobObjects, part: str = "") -> None:
    """Wait until no container of the job's pods runs, or of those of one part."""
    began = time.monotonic()
    while True:
        pods = [pod for pod in cluster.pods(_PATIENCE) if part in ("", api_server.part_of(pod))]
        graces = [float((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30) for pod in pods]
        late = time.monotonic() - began > max(graces, default=0.0) + _GRACE_MARGIN
        if late or all(map(pod_states.has_stopped, pods)):
            return
        time.sleep(0.3)


def _judge(cluster: api_server.JobObjects) -> JobState:
    """How a job stands, from its launcher's Job and its pods."""
    root, pods = cluster.root(), cluster.pods()
    if pod_states.is_being_deleted(root):
        if all(map(pod_states.has_stopped, pods)):
            return JobState("stopped", "deleted")  # the objects go later
        return JobState("running", "Terminating", is_finishing=True)
    phases = [(api_server.part_of(pod), (pod.get("status") or {}).get("phase") or "Pending") for pod in pods]
    by_part = dict(phases)
    phase = by_part.get("launcher") or pod_states.phase_of_job(root)
    if phase in ("Succeeded", "Failed"):  # whoever follows the job is about to record how it ended
        return JobState("running", phase, is_finishing=True)
    for pod in pods:
        if why := pod_states.why_it_waits(pod):
            return JobState("queued", "Pending", f"pod {pod['metadata']['name']}: {why}")
    parts = {"launcher": cluster.job.name, "worker": f"{cluster.job.name}-worker"}
    for part, name in {} if cluster.job.volcano else parts.items():
        if part not in by_part and (why := pod_states.why_pods_are_missing(cluster.events(name))):
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
        return manifests.planned_hosts(job.spec)

    def notes(self, job: JobContext) -> tuple[str, ...]:
        launch = job.spec.launch
        namespace = launch.namespace or launch.kubernetes.namespace
        place = f"namespace {namespace}" if namespace else "the namespace of the kubeconfig"
        return (f"pods run image {launch.image or launch.kubernetes.image} in {place}",)
