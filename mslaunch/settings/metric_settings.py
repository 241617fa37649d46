"""`launch.metrics`: metrics that the job's own lines tell, or false for none at all."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mslaunch.shared.metric_values import RESERVED, is_name

LONGEST_REGEX = 1000


def _name(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"no metric is called {name}: rows of metrics.jsonl have a key of this name")
    if not is_name(name):
        raise ValueError("begin with a letter and use letters, digits and _ . / - only, 64 at most")
    return name


def _regex(regex: str) -> str:
    if len(regex) > LONGEST_REGEX:
        raise ValueError(f"at most {LONGEST_REGEX} characters are taken")
    try:
        compiled = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if not compiled.groups:
        raise ValueError(r"put the number into a group, for example 'acc: ([\d.]+)'")
    if compiled.search(""):
        raise ValueError("it matches an empty line, so it would match every line")
    return regex


class MetricEntry(BaseModel):
    """One of `launch.metrics`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_name)] = Field(description="What the metric is called.")
    regex: Annotated[str, AfterValidator(_regex)] = Field(
        description="Regular expression of Python's re, searched in each line; its first group is the number."
    )
