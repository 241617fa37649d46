"""Validating a rank table: all findings at once, each with its line and column."""

from __future__ import annotations

from mslaunch.ranktable.findings import Finding, Unreadable, locate, read_json
from mslaunch.ranktable.rules import Job, check_table


def validate(text: str, soc: str | None = None, workers: int | None = None) -> list[Finding]:
    """Return everything that is wrong with a table, errors before warnings, in the order of the text."""
    try:
        raw = read_json(text)
    except Unreadable as error:
        return [error.finding]
    findings = locate(text, list(check_table(raw, Job(soc, workers))))
    return sorted(findings, key=lambda finding: (finding.severity, finding.line, finding.column))
