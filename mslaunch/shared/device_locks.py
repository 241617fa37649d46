"""Locks on NPUs and GPUs: a device is one run's at a time, whoever launched it, until the agent that holds it ends.

A lock is an flock on a file that all users of the machine can open; the file says whose it is, and alone it means
nothing. It is called after the device itself, so that other numbers for the same device make no difference.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import stat
import time

from mslaunch.shared.visible_devices import seen_here

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "/tmp/mslaunch-devices"
DEVICES = "/dev"
TRIES, PAUSE = 10, 0.05  # whoever only looks holds a lock for a moment
_MOST = 4096


def _lock_names(stem: str, devices: Iterable[int], environment: Mapping[str, str]) -> dict[int, str | None]:
    files = seen_here(stem, environment, DEVICES)
    return {device: _lock_name(stem, files.get(device)) for device in devices}


def _lock_name(stem: str, file: int | None) -> str | None:
    """Return the name of a device's lock: its device number on this machine; None where there is no such device."""
    try:
        status = os.stat(f"{DEVICES}/{stem}{file}")  # no such file where it is None
    except OSError:
        return None
    if stat.S_ISCHR(status.st_mode):
        return f"{os.major(status.st_rdev)}-{os.minor(status.st_rdev)}"
    return f"{status.st_dev}-{status.st_ino}"


class DeviceLocks:
    """The devices that this agent holds."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.problem: str | None = None  # why some of the devices that were asked for have no lock

    def take(self, stem: str, devices: Iterable[int], environment: Mapping[str, str], run: str) -> dict[int, str]:
        """Take these devices for a run, for good; return those that others hold, with who that is."""
        refused: dict[int, str] = {}
        for device, name in _lock_names(stem, devices, environment).items():
            if name is not None and name not in self._held:
                try:
                    file = _open(name)
                except OSError as error:
                    self.problem = f"{error.filename or FOLDER}: {error.strerror}{_owner(FOLDER)}"
                    continue
                if _lock(file):
                    _sign(file, run)
                    self._held[name] = file
                else:
                    refused[device] = _holder(file)
                    os.close(file)
        return refused


def holders(stem: str, devices: Iterable[int], environment: Mapping[str, str]) -> dict[int, str]:
    """Return those of these devices that runs hold, with who that is."""
    held: dict[int, str] = {}
    for device, name in _lock_names(stem, devices, environment).items():
        if name is None:
            continue
        try:
            file = _open_existing(name)
        except OSError:
            continue  # whoever takes the device reports it
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held[device] = _holder(file)
        except OSError:
            pass  # a file system without locks
        os.close(file)
    return held


def _lock(file: int) -> bool:
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
        except OSError:
            return True  # a file system without locks
        else:
            return True
    return False


def _open_existing(name: str) -> int:
    """Open a lock's file as it is: with O_CREAT, the kernel may refuse a file of another user in such a folder.

    A file with another name is refused: it may be any file of ours that another user has linked here.
    """
    path = os.path.join(FOLDER, name)
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a file of its own", path)


def _open(name: str) -> int:
    try:
        return _open_existing(name)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(FOLDER)
        os.chmod(FOLDER, 0o1777)
    except OSError:
        pass  # it is there
    try:
        file = os.open(os.path.join(FOLDER, name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        return _open_existing(name)  # somebody was quicker
    os.fchmod(file, 0o666)
    return file


def _owner(path: str) -> str:
    """Say whose a folder is, where it is another user's."""
    try:
        owner = os.lstat(path).st_uid
        return "" if owner == os.geteuid() else f" ({path} was made by {pwd.getpwuid(owner).pw_name})"
    except KeyError:
        return f" ({path} was made by uid {owner})"
    except OSError:
        return ""


def _sign(file: int, run: str) -> None:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    holder = {"run": run, "pid": os.getpid(), "user": user, "since": time.time()}
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode(), 0)
    except OSError:
        pass  # a full disk: the lock holds all the same


def _holder(file: int) -> str:
    """Say who holds a lock. Any user could have written the file, so nothing in it is taken for granted."""
    try:
        holder = json.loads(os.pread(file, _MOST, 0))
        since = time.strftime("%m-%d %H:%M:%S", time.localtime(float(holder["since"])))
        run, user = (str(holder[name])[:100] for name in ("run", "user"))
        text = f"run {run} (pid {int(holder['pid'])}, user {user}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another run"
    return text if text.isprintable() else "another run"
