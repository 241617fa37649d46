"""Validating a rank table: all findings at once, each with its line and column."""

from __future__ import annotations

from mslaunch.ranktable.findings import Finding, TableUnreadable, locate, read_json
from mslaunch.ranktable.rules import TableContext, check_table


def validate(text: str, soc: str | None = None, workers: int | None = None, name: str = "") -> list[Finding]:
    """Return everything that is wrong with a table, errors before warnings, in the order of the text."""
    try:
        raw = read_json(text)
    except TableUnreadable as error:
        return [error.finding]
    found = list(check_table(raw, TableContext(soc, workers)))
    if name and not name.endswith(".json"):
        found.append(Finding((), "the file's name must end in .json", "Rename it.", "EI0004"))
    findings = locate(text, found)
    return sorted(findings, key=lambda finding: (finding.severity, finding.line, finding.column))
