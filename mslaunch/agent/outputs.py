"""What the ranks have written, in rows for people: files one by one, folders in sum."""

from __future__ import annotations

from mslaunch import layout, work_folder

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from mslaunch import messages

MOST_ENTRIES = 20_000
"""How many entries of one rank's folder are looked at."""
MOST_ROWS = 20
"""How many rows a rank has; a folder of files is one row."""


def scan(rank: int, run_dir: str, workdir: str = "") -> list[messages.OutputRow]:
    """List what a rank has written, the largest first: files one by one, folders of the working directory in sum."""
    rows: dict[str, list[int]] = {}
    for name, size in work_folder.files(run_dir, rank, MOST_ENTRIES):
        row = rows.setdefault(_row(name, workdir), [0, 0])
        row[0] += 1
        row[1] += size
    largest = sorted(rows.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    return [{"rank": rank, "path": path, "files": files, "bytes": size} for path, (files, size) in largest]


def _row(name: str, workdir: str) -> str:
    """The file itself where it lies at the top, else the folder at the top that holds it; from the rank's folder."""
    above = f"{workdir}/" if workdir and name.startswith(f"{workdir}/") else ""
    first, deeper, _ = name[len(above) :].partition("/")
    return f"{layout.WORK}/{above}{first}{deeper}"
