"""Every border: what is read from outside, in one table."""

from __future__ import annotations

from fuzz import checkpoints, join, pages, records, requests, rules, torch_files, traces, wires

BORDERS = (
    *requests.BORDERS,
    *records.BORDERS,
    *checkpoints.BORDERS,
    *torch_files.BORDERS,
    *rules.BORDERS,
    *traces.BORDERS,
    *wires.BORDERS,
    *join.BORDERS,
    *pages.BORDERS,
)
