"""A rank's working directory: links to the job's code, env.log, and where output goes."""

from __future__ import annotations

import os

from mslaunch import layout, masking

OWN_ENTRIES = 500
"""How many files and links a rank's folder gets below its top level: more would slow the start of many ranks."""
COPY_LIMIT = 1 << 20


def make(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def mirror_code(run_dir: str, rank_dir: str, copies: bool) -> None:
    """Make the rank's folder a mirror of code/: folders of its own, with a link to each file of code/.

    A folder is mirrored at all levels, or is one link: os.walk does not go into a folder that is a link in another one.
    With `copies` the rank gets small files of its own, for programs whose writes nobody sees (worker/own_files.py).
    """
    code = os.path.join(run_dir, layout.CODE)
    left = OWN_ENTRIES
    try:
        entries = list(os.scandir(code))
    except OSError:
        return
    for entry in entries:
        if entry.name == "__pycache__":  # another rank may have imported something already
            continue
        path = os.path.join(rank_dir, entry.name)
        if not entry.is_dir(follow_symlinks=False):
            if entry.name not in layout.RANK_FILES:
                _place(entry, path, copies)
            continue
        below = _tree(entry.path, left)
        if below is None:
            _link(entry.path, path)
            continue
        left -= len(below)
        make(path)
        for inside in below:
            target = path + inside.path[len(entry.path) :]
            if inside.is_dir(follow_symlinks=False):
                make(target)
            else:
                _place(inside, target, copies)


def _tree(folder: str, most: int) -> list[os.DirEntry[str]] | None:
    """Everything in a folder, folders before what they hold; None where there is more than `most`."""
    found: list[os.DirEntry[str]] = []
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop(0)))
        except OSError:
            continue
        entries = [entry for entry in entries if entry.name != "__pycache__"]
        found += entries
        if len(found) > most:
            return None
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def _place(entry: os.DirEntry[str], path: str, copies: bool) -> None:
    if not (copies and _copy(entry, path)):
        _link(entry.path, path)


def _link(source: str, path: str) -> None:
    """Link to an entry of code/; not by a relative path, since a script may move the link."""
    try:
        os.symlink(source, path)
    except FileExistsError:
        pass  # an earlier attempt has made it, or the job has its own


def _copy(entry: os.DirEntry[str], path: str) -> bool:
    """Copy a small file; tell whether that was done."""
    try:
        if not entry.is_file() or entry.stat().st_size > COPY_LIMIT:
            return False
    except OSError:
        return False
    if not os.path.lexists(path):
        import shutil

        shutil.copy2(entry.path, path)
    return True


def write_environment(path: str) -> None:
    """Write the environment, with the values of what looks like a secret masked."""
    named = os.environ.get("MSLAUNCH_SECRETS", "").split(",")
    lines = [
        f"{name}={masking.MASK if name in named else masking.masked(name, value)}\n"
        for name, value in sorted(os.environ.items())
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(lines)


def redirect_output(path: str) -> None:
    """Send output and errors to one file, each write appended whole."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
