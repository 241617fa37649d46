"""What mirrors the project in a run, and what the job wrote there: in the ranks' working folders and in code/.

A rank's working folder mirrors code/ while the rank runs; afterwards it holds what the rank wrote and nothing else.

Travels with the agent: Python 3.9, standard library only."""

from __future__ import annotations

import os
import stat

from mslaunch.shared import layout

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mslaunch.shared import messages

    Tree = list[tuple[os.DirEntry[str], "Tree" | None]]

OWN_ENTRIES = 500  # how many files and links a rank gets below the top level: more would slow the start of many ranks
COPY_LIMIT = 1 << 20
MOST_ENTRIES = 20_000  # how many entries of a folder are looked at for what the job wrote


def make(run_dir: str, rank: int, copies: bool) -> str:
    """Make the rank's mirror of code/, folders of its own with a link to each file, and return its path.

    A folder is mirrored at all levels, or is one link: os.walk does not go into a folder that is a link in another one.
    With `copies` the rank gets small files of its own, for programs whose writes nobody sees (worker/own_files.py). A
    further attempt calls this again: what an earlier one wrote stays as it is.
    """
    code, work = os.path.join(run_dir, layout.CODE), os.path.join(run_dir, layout.work_folder(rank))
    os.makedirs(work, mode=0o700, exist_ok=True)
    left = OWN_ENTRIES
    for entry in _entries(code):
        # One link to a repository: git takes a HEAD that is a link for something else.
        is_mirrored = entry.is_dir(follow_symlinks=False) and entry.name != layout.REPOSITORY
        below = _look(entry.path, left) if is_mirrored else None
        _place(entry, below, os.path.join(work, entry.name), copies)
        left -= _count(below)
    return work


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What a folder holds, without the bytecode of what other ranks have imported already."""
    return [entry for entry in _scan(folder) if entry.name != "__pycache__"]


def _look(folder: str, most: int) -> Tree | None:
    """Everything in a folder; None where there is more than `most`."""
    tree: Tree = []
    for entry in _entries(folder):
        below = None
        if entry.is_dir(follow_symlinks=False):
            below = _look(entry.path, most - len(tree) - 1)
            if below is None:
                return None
            most -= _count(below)
        tree.append((entry, below))
        if len(tree) > most:
            return None
    return tree


def _count(tree: Tree | None) -> int:
    return sum(1 + _count(below) for _, below in tree or ())


def _place(entry: os.DirEntry[str], below: Tree | None, path: str, copies: bool) -> None:
    """Mirror an entry of code/, unless an earlier attempt has put something else in its place."""
    if below is None:
        if not (copies and _copy(entry, path)):
            try:
                os.symlink(entry.path, path)  # not by a relative path, since a script may move the link
            except FileExistsError:
                pass
        return
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            return
    for inside, further in below:
        _place(inside, further, os.path.join(path, inside.name), copies)


def _copy(entry: os.DirEntry[str], path: str) -> bool:
    try:
        if not entry.is_file() or entry.stat().st_size > COPY_LIMIT:
            return False
    except OSError:
        return False
    if not os.path.lexists(path):
        import shutil

        shutil.copy2(entry.path, path)
    return True


def clear(run_dir: str, rank: int) -> None:
    """Remove what nothing has replaced of the rank's mirror: links, unchanged copies, and folders that are then empty.

    Right at any time after the rank has ended, also a second time: a link is known by where it leads.
    """
    _clear(os.path.join(run_dir, layout.work_folder(rank)), os.path.join(run_dir, layout.CODE))


def clear_all(run_dir: str) -> None:
    """Do so for every rank whose folder is here."""
    for entry in _scan(run_dir):
        number = entry.name[len(layout.RANK) :]
        if entry.name.startswith(layout.RANK) and number.isdecimal():
            clear(run_dir, int(number))


def _clear(folder: str, original: str) -> None:
    for entry in _scan(folder):
        beside = os.path.join(original, entry.name)
        try:
            if entry.is_dir(follow_symlinks=False):
                if os.path.isdir(beside):  # a folder that code/ lacks is the job's, with all that it holds
                    _clear(entry.path, beside)
                    os.rmdir(entry.path)
            elif is_mirrored(entry, beside):
                os.unlink(entry.path)
        except OSError:
            pass  # a folder that is not empty, a disk that fails: what cannot be removed stays


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def files(run_dir: str, rank: int, most: int = MOST_ENTRIES) -> Iterator[tuple[str, int]]:
    """Yield what the rank has written so far, by its path in the rank's folder, with its size.

    At most so many entries are looked at. A link that the job made is nothing that it wrote. What the rank has put
    beside our files (`../x`) comes first.
    """
    folder, code = os.path.join(run_dir, layout.rank_folder(rank)), os.path.join(run_dir, layout.CODE)
    for name, entry in _walk(folder, "", most, (*layout.RANK_FILES, layout.RESULT, layout.PLOG, layout.WORK)):
        yield name, _size(entry)
    for name, entry in _walk(folder, f"{layout.WORK}/", most):
        if not is_mirrored(entry, os.path.join(code, name[len(layout.WORK) + 1 :])):
            yield name, _size(entry)


def code_files(run_dir: str, most: int = MOST_ENTRIES) -> Iterator[tuple[str, int]]:
    """Yield what the ranks have written into code/, by its path in the run's folder, with its size.

    A path from `__file__` leads there. A file is known by what the snapshot notes of it.
    """
    import json

    try:
        with open(os.path.join(run_dir, layout.SNAPSHOT), encoding="utf-8", errors="surrogateescape") as file:
            copies = json.load(file)["copies"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name, entry in _walk(run_dir, f"{layout.CODE}/", most):
        if not _is_copy(entry, copies.get(name[len(layout.CODE) + 1 :])):
            yield name, _size(entry)


def _walk(folder: str, inside: str, most: int, but: tuple[str, ...] = ()) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files below the part `inside` of a folder, with their paths; at its top not those called like `but`."""
    waiting = [inside]
    while waiting and most > 0:
        place = waiting.pop()
        entries = _entries(os.path.join(folder, place))
        most -= len(entries)
        for entry in entries:
            if place == inside and layout.original_name(entry.name) in but:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{place}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{place}{entry.name}", entry


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0  # it has vanished meanwhile


def _is_copy(entry: os.DirEntry[str], stamp: list[int] | None) -> bool:
    """Tell whether a file of code/ is as the snapshot left it, also in a copy of the run, where its time is another."""
    if stamp is None:
        return False
    size, changed, checksum = stamp
    try:
        status = entry.stat()
        if status.st_size != size or status.st_mtime_ns == changed:
            return status.st_size == size
        import zlib

        with open(entry.path, "rb") as file:
            return zlib.crc32(file.read()) == checksum
    except OSError:
        return True


def is_mirrored(entry: os.DirEntry[str], original: str) -> bool:
    """Tell whether an entry is a link to where its original in code/ is or leads, or an unchanged copy of it."""
    try:
        if entry.is_symlink():
            target = os.readlink(entry.path)
            return target == original or os.path.realpath(target) == os.path.realpath(original)
        here, there = entry.stat(), os.stat(original)
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


MOST_ROWS = 20  # how many rows a rank has; a folder of files is one row


def outputs(run_dir: str, ranks: Iterable[int], workdir: str = "") -> list[messages.OutputRow]:
    """List what these ranks have written, the largest of each first, and what lies in code/, which they share.

    Files are listed one by one, folders of the working directory in sum.
    """
    rows = []
    for rank in ranks:
        rows += _rows(rank, files(run_dir, rank), layout.WORK, workdir)
    return rows + _rows(None, code_files(run_dir), layout.CODE, workdir)


def _rows(rank: int | None, files: Iterable[tuple[str, int]], root: str, workdir: str) -> list[messages.OutputRow]:
    tops = (os.path.join(root, workdir, ""), os.path.join(root, ""))
    rows: dict[str, list[int]] = {}
    for name, size in files:
        above = next((top for top in tops if name.startswith(top)), "")
        first, deeper, _ = name[len(above) :].partition(
            "/"
        )  # a file at the top, or the folder at the top that holds it
        row = rows.setdefault(above + first + deeper, [0, 0])
        row[0] += 1
        row[1] += size
    largest = sorted(rows.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    return [{"rank": rank, "path": path, "files": count, "bytes": size} for path, (count, size) in largest]
