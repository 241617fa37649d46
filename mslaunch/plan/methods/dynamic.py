"""The default method: mslaunch starts MindSpore's scheduler and every rank itself."""

from __future__ import annotations

from mslaunch.plan.methods.base import Method, MethodPlan, PlacedJob
from mslaunch.plan.methods.processes import job_env, scheduler_process, worker_processes


class Dynamic(Method):
    name = "dynamic"
    needs_scheduler = True

    def plan(self, job: PlacedJob) -> MethodPlan:
        return MethodPlan(job_env(job), (scheduler_process(job, "on-import"), *worker_processes(job)))
