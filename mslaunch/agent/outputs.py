"""What the ranks have written: the files in a rank's folder that are neither mslaunch's nor links to the project."""

from __future__ import annotations

import os

from mslaunch import layout

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mslaunch import messages

OF_A_RANK = tuple(name.split(".")[0] for name in (*layout.RANK_FILES, layout.RESULT))
"""How the names begin of what mslaunch itself writes into a rank's folder, in every attempt."""
MOST_ENTRIES = 20_000
"""How many entries of one rank's folder are looked at."""
MOST_ROWS = 20
"""How many rows a rank has; a folder of files is one row."""
_NEVER = ("__pycache__",)


def scan(rank: int, run_dir: str, workdir: str = "") -> list[messages.OutputRow]:
    """List what a rank has written, the largest first: files one by one, folders of the working directory in sum."""
    folder = os.path.join(run_dir, layout.rank_folder(rank))
    code = os.path.join(run_dir, layout.CODE)
    rows: dict[str, list[int]] = {}
    for name, size in _files(folder, code):
        row = rows.setdefault(_row(name, workdir), [0, 0])
        row[0] += 1
        row[1] += size
    largest = sorted(rows.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    return [{"rank": rank, "path": path, "files": files, "bytes": size} for path, (files, size) in largest]


def _row(name: str, workdir: str) -> str:
    """The file itself where it lies at the top, else the folder at the top that holds it."""
    above = f"{workdir}/" if workdir and name.startswith(f"{workdir}/") else ""
    first, deeper, _ = name[len(above) :].partition("/")
    return above + first + deeper


def _files(folder: str, code: str) -> Iterator[tuple[str, int]]:
    left = MOST_ENTRIES
    waiting = [""]
    while waiting and left > 0:
        inside = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, inside)))
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.is_symlink() or (not inside and _is_ours(entry.name)):
                continue
            if entry.is_dir():
                if entry.name not in _NEVER:
                    waiting.append(f"{name}/")
            elif entry.is_file():
                try:
                    stat = entry.stat()
                except OSError:
                    continue
                if not _is_copy(os.path.join(code, name), stat):
                    yield name, stat.st_size


def _is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in OF_A_RANK or name.split(".", maxsplit=1)[0] == layout.PLOG


def _is_copy(original: str, stat: os.stat_result) -> bool:
    """Tell whether a file is an unchanged copy of one of the project's: a program gets some of its own."""
    try:
        before = os.stat(original)
    except OSError:
        return False
    return (before.st_size, before.st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
