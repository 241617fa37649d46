"""docs/metrics.md lists the lines that are known, as the table has them."""

from __future__ import annotations

import textwrap

import yaml

from tests.conftest import ROOT


def formats() -> str:
    """The list for the page, made from the table."""
    parts = []
    for row in yaml.safe_load((ROOT / "mslaunch/metrics/lines.yaml").read_text()):
        heading = f"**{row['framework']}**: {', '.join(f'`{name}`' for name in row['values'])}"
        parts += [textwrap.fill(heading, 100, break_on_hyphens=False), f"    {row['example'].strip()}"]
    return "\n\n".join(parts)


def test_the_pages_list_the_lines_that_are_known() -> None:
    """In both languages; where this fails, put what formats() returns into both pages."""
    for page in ("docs/metrics.md", "docs/zh/metrics.md"):
        assert formats() in (ROOT / page).read_text(), page
