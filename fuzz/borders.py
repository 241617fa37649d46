"""Every border: what is read from outside, in one table."""

from __future__ import annotations

from fuzz import checkpoints, pages, records, requests, torch_files, wires

BORDERS = (
    *requests.BORDERS,
    *records.BORDERS,
    *checkpoints.BORDERS,
    *torch_files.BORDERS,
    *wires.BORDERS,
    *pages.BORDERS,
)
