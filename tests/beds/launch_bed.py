"""The road of a launch up to its last stage, for tests that look at what comes before or after."""

from __future__ import annotations

from mslaunch.launcher import pipeline
from mslaunch.launcher.background import ThreadRunner
from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.launcher.read import Request
from mslaunch.transports.base import JobQueue


class _Halt(ThreadRunner):
    """Returns what a job has come to, and runs nothing."""

    def submit(self, planned: PlannedJob, _queue: JobQueue) -> PlannedJob:  # type: ignore[override]
        return planned

    def run(self, launch: Launch) -> Launch:  # type: ignore[override]
        return launch


def ready(request: Request) -> Launch:
    """Take a job to the point at which it would start: its folder is there."""
    launch: Launch = pipeline.launch(request, _Halt())
    return launch


def planned(request: Request) -> PlannedJob:
    """Take a job for a queue to the point at which it would be submitted."""
    job: PlannedJob = pipeline.launch(request, _Halt())
    return job
