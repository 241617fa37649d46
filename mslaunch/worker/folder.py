"""A rank's working directory: links to the job's code, env.log, and where output goes."""

from __future__ import annotations

import os

from mslaunch import layout, masking

OWN_ENTRIES = 500
"""How many files and links a rank's folder gets below its top level: more would slow the start of many ranks."""


def make(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def mirror_code(run_dir: str, rank_dir: str, copies: bool) -> None:
    """Make the rank's folder a mirror of code/: folders of its own, with a link to each file of code/.

    Folders are made level by level, for so many entries; what is deeper is one link a folder. With `copies` the rank
    gets small files of its own, for programs whose writes nobody sees (worker/own_files.py).
    """
    code = os.path.join(run_dir, layout.CODE)
    left = OWN_ENTRIES
    waiting = [""]
    while waiting:
        inside = waiting.pop(0)
        try:
            entries = list(os.scandir(os.path.join(code, inside)))
        except OSError:
            continue
        target = os.path.join(rank_dir, inside)
        if inside and len(entries) > left:
            _link(inside, target)
            continue
        left -= len(entries)
        make(target)
        for entry in entries:
            name = os.path.join(inside, entry.name)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name)
            elif name not in layout.RANK_FILES:
                path = os.path.join(target, entry.name)
                if not (copies and _copy(entry, path)):
                    _link(name, path)


def _link(name: str, path: str) -> None:
    """Link to an entry of code/ by a relative path, so that a run can be moved."""
    try:
        os.symlink("../" * (name.count("/") + 1) + f"{layout.CODE}/{name}", path)
    except FileExistsError:
        pass  # an earlier attempt has made it, or the job has its own


def _copy(entry: os.DirEntry[str], path: str) -> bool:
    """Copy a file of code/; links lead to data, which stays where it is."""
    if entry.is_symlink() or not entry.is_file():
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
