"""`mslaunch config schema`: what a job's YAML may hold."""

from __future__ import annotations

import json

from mslaunch.cli.parsing import common
from mslaunch.plan.methods import METHODS
from mslaunch.settings.json_schema import schema as json_schema

app = common.new_app()


@app.callback()
def config() -> None:
    """About a job's YAML."""


@app.command()
def schema() -> None:
    """Print the JSON Schema of a job's YAML, for editors."""
    print(json.dumps(json_schema(METHODS), indent=2))
