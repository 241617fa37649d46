"""What the ranks have written, in rows for people: files one by one, folders in sum."""

from __future__ import annotations

import os

from mslaunch import layout, work_folder

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mslaunch import messages

MOST_ROWS = 20
"""How many rows a rank has; a folder of files is one row."""


def scan(rank: int, run_dir: str, workdir: str = "") -> list[messages.OutputRow]:
    """List what a rank has written, the largest first: files one by one, folders of the working directory in sum."""
    return _rows(rank, work_folder.files(run_dir, rank), layout.WORK, workdir)


def scan_code(run_dir: str, workdir: str = "") -> list[messages.OutputRow]:
    """List what the ranks have written into code/, which they share."""
    return _rows(None, work_folder.code_files(run_dir), layout.CODE, workdir)


def _rows(rank: int | None, files: Iterable[tuple[str, int]], root: str, workdir: str) -> list[messages.OutputRow]:
    tops = (os.path.join(root, workdir, ""), os.path.join(root, ""))
    rows: dict[str, list[int]] = {}
    for name, size in files:
        row = rows.setdefault(_row(name, tops), [0, 0])
        row[0] += 1
        row[1] += size
    largest = sorted(rows.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    return [{"rank": rank, "path": path, "files": count, "bytes": size} for path, (count, size) in largest]


def _row(name: str, tops: tuple[str, ...]) -> str:
    """The file itself where it lies at the top, else the folder at the top that holds it."""
    above = next((top for top in tops if name.startswith(top)), "")
    first, deeper, _ = name[len(above) :].partition("/")
    return above + first + deeper
