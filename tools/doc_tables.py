"""The tables of the documentation that the code holds: `python -m tools.doc_tables` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from mslaunch.errors import ExitCode
from mslaunch.settings.environment import VARIABLES
from mslaunch.settings.launch import SETTINGS, LaunchSettings
from mslaunch.settings.setting import Flag
from mslaunch.settings.value_types import write_setting

DOCS = Path(__file__).parents[1] / "docs"
_TABLE = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def written_default(name: str) -> str:
    """Write the default of a setting as the YAML takes it; nothing where it has none."""
    default = getattr(LaunchSettings(), name)
    if default is None or write_setting(default) in ("[]", "{}"):
        return ""
    if isinstance(default, float):
        return f"{default:g}"
    return write_setting(default)


def settings_table() -> str:
    """Write a row for every setting: its flag, its default, what it does and the page that explains it."""
    rows = []
    for name, setting in SETTINGS.items():
        default = written_default(name) or setting.absent or "none"
        rows.append((name, _flag(setting.flag), default, f"{setting.description}{_link(setting.see)}"))
    return _table(("key", "flag", "default", "meaning"), rows)


def _flag(flag: Flag | None) -> str:
    if flag is None:
        return ""
    spellings = [spelling for spelling in flag.names if "_" not in spelling]
    return ", ".join(f"`{spelling}`" for spelling in spellings)


def _link(page: str) -> str:
    if not page:
        return ""
    return f" See [{page.partition('#')[0] or 'below'}]({page})."


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cells in rows:
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def exit_codes_table() -> str:
    """Write a row for every exit code that mslaunch gives by itself."""
    return _table(("exit code", "meaning"), [(str(int(code)), code.meaning) for code in ExitCode])


def variables_table() -> str:
    """Write a row for every variable that a rank may get."""
    rows = [(row.name, row.meaning, row.setter) for row in VARIABLES if row.meaning]
    return _table(("variable", "meaning", "set by"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "exit codes": exit_codes_table,
    "settings": settings_table,
    "variables": variables_table,
}
"""What stands between `<!-- table: NAME -->` and `<!-- end of table -->`."""


def with_tables(text: str) -> str:
    """Return a page with its tables as the code has them."""
    return _TABLE.sub(lambda table: f"{table[1]}{TABLES[table[2]]()}{table[3]}", text)


def pages() -> list[Path]:
    """Return the pages that have such tables."""
    return [path for path in sorted(DOCS.glob("*.md")) if _TABLE.search(path.read_text())]


def main() -> None:
    for path in pages():
        path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
