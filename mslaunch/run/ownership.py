"""Whose run it is: what signals processes, starts programs or writes records is for the run's owner alone."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from mslaunch.errors import NotOwner
from mslaunch.run.paths import RunFolder, SweepFolder

_READ = (".json", ".jsonl", "_job")  # how the files end by which a verb decides what to do


def check_owner(folder: RunFolder | SweepFolder, doing: str) -> None:
    """Refuse to act on a run or a sweep unless its folder, and the files that are read there, are the caller's."""
    sweep = folder.sweep if isinstance(folder, RunFolder) else None
    for path in (*_decisive(folder.path), *(_decisive(sweep.path) if sweep else ())):
        owner = _owner(path)
        if owner != os.geteuid():
            raise NotOwner(str(path), None if owner is None else user_name(owner), doing, os.geteuid() == 0)


def is_own(folder: RunFolder | SweepFolder) -> bool:
    """Tell whether a folder is the caller's: others are read, and never written to."""
    return _owner(folder.path) == os.geteuid()


def become_owner(folder: RunFolder | SweepFolder) -> None:
    """Give up root's rights for those of the folder's owner; nothing changes for a caller who is not root."""
    owner = _owner(folder.path)
    if os.geteuid() != 0 or owner in (None, 0):
        return
    assert owner is not None
    try:
        user = pwd.getpwuid(owner)
        group, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
        home, name = user.pw_dir, user.pw_name
    except KeyError:
        group, groups, home, name = folder.path.lstat().st_gid, [], "/", str(owner)
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(owner, owner, owner)
    os.environ.update(HOME=home, USER=name, LOGNAME=name)  # ssh takes its keys and configuration from there


def user_name(uid: int) -> str:
    """Name a user; by number one that has no account on this machine."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _decisive(path: Path) -> list[Path]:
    try:
        return [path, *sorted(inside for inside in path.iterdir() if inside.name.endswith(_READ))]
    except OSError:
        return [path]


def _owner(path: Path) -> int | None:
    """Return whose a file or folder is; None for a link, which may lead anywhere, and for what is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return None if stat.S_ISLNK(status.st_mode) else status.st_uid
