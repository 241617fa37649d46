"""Every border: what is read from outside, in one table."""

from __future__ import annotations

from fuzz import checkpoints, join, records, requests, wires

BORDERS = (*requests.BORDERS, *records.BORDERS, *checkpoints.BORDERS, *wires.BORDERS, *join.BORDERS)
