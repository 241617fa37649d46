"""The objects of a job on Kubernetes as text, for whoever submits them with another tool."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mslaunch.plan.model import Plan


def object_text(plan: Plan) -> str:
    """The objects of a plan, without code and secret."""
    from mslaunch.transports.kubernetes.submission import OBJECTS

    return next(file.content for file in plan.files if file.path == OBJECTS)


def complete_objects(plan: Plan) -> str:
    """All objects of a plan, with the project's code and a new secret."""
    import yaml

    from mslaunch.launcher.folder import fill
    from mslaunch.run.paths import RunFolder
    from mslaunch.transports.kubernetes.manifests import to_yaml
    from mslaunch.transports.kubernetes.submission import further_objects

    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) / plan.run_id
        folder.mkdir()
        fill(plan, RunFolder(folder))
        objects = list(yaml.safe_load_all(object_text(plan)))
        namespace = objects[0]["metadata"].get("namespace")
        further = further_objects(folder, next(one for one in objects if one["kind"] == "Job"), {})
    for one in further if namespace else ():
        one["metadata"]["namespace"] = namespace
    return to_yaml([*further, *objects])
