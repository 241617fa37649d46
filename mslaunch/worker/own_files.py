"""A rank's writes stay in its own folder, also where it writes to what its folder only links to.

The rank's folder mirrors the project by links. A write through one would change the project, or what other ranks read.
So an audit hook sees every file that Python is about to open for writing, rename, remove or change. Where its path
leads through a link of ours, the link is replaced first: by a copy, or by a folder of links to what the folder held.
os.path.realpath takes these links for what they stand for: MindSpore saves a checkpoint to the real path of its name.
"""

from __future__ import annotations

import _thread
import os
import sys

from mslaunch.shared import layout

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_real = os.path.realpath
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MOST_ENTRIES = 100_000
"""How many entries a folder gets when it is made the rank's own; what is beyond that is one link a folder."""
MOST_LINKS = 40  # how many links of the script's own are followed one after the other, as the kernel does
_FOLDER_NEEDED = "folder"
_COPY_NEEDED = "copy"
_NAME_ONLY = "name"
_NOTHING_NEEDED = "nothing"

EVENTS: dict[str, tuple[tuple[int, str], ...]] = {
    "os.chdir": ((0, _FOLDER_NEEDED),),
    "os.chmod": ((0, _COPY_NEEDED),),
    "os.chown": ((0, _COPY_NEEDED),),
    "os.link": ((0, _COPY_NEEDED), (1, _NAME_ONLY)),
    "os.mkdir": ((0, _NAME_ONLY),),
    "os.remove": ((0, _NAME_ONLY),),
    "os.rename": ((0, _NAME_ONLY), (1, _NAME_ONLY)),
    "os.rmdir": ((0, _FOLDER_NEEDED),),
    "os.setxattr": ((0, _COPY_NEEDED),),
    "os.symlink": ((1, _NAME_ONLY),),
    "os.truncate": ((0, _COPY_NEEDED),),
    "os.utime": ((0, _COPY_NEEDED),),
    "shutil.rmtree": ((0, _FOLDER_NEEDED),),
    "sqlite3.connect": ((0, _COPY_NEEDED),),
}
"""What is about to be changed, by Python's audit events: which argument names it, and what has to be the rank's own."""


def install(run_dir: str, environment: Mapping[str, str]) -> None:
    """Keep this process's writes, and those of whatever it forks, out of the project; it cannot be undone."""
    project = environment.get("MSLAUNCH_JOB_DIR")
    if project:
        shared = tuple(name for name in environment.get("MSLAUNCH_SHARED", "").split(":") if name)
        own = OwnFiles(run_dir, project, shared)
        sys.addaudithook(own.hook)
        os.path.realpath = own.realpath


class OwnFiles:
    """The links of one rank's folder and of code/, and what becomes of them."""

    def __init__(self, run_dir: str, project: str, shared: tuple[str, ...]) -> None:
        self._run = _real(run_dir) + "/"
        self._code = self._run + layout.CODE + "/"
        self._project = _real(project) + "/"
        self._shared = tuple(os.path.join(self._project, name) for name in shared)
        self._busy: set[int] = set()

    def realpath(self, filename: Any, **options: Any) -> Any:
        """Resolve a path as os.path.realpath does, but leave a link that mirrors the project as it is."""
        real = _real(filename, **options)
        absolute = _from_here(os.fsdecode(filename))
        steps = list(self._steps(absolute, True)) if absolute is not None else []
        if not steps:
            return real
        own, is_last, _ = steps[-1]
        if not is_last:
            return real
        return os.fsencode(own) if isinstance(real, bytes) else own

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            flags = args[2]
            if isinstance(flags, int) and flags & _WRITING:
                self._prepare(args[0], _NOTHING_NEEDED if flags & os.O_TRUNC else _COPY_NEEDED)
        elif event in EVENTS:
            for index, needed in EVENTS[event]:
                path = args[index]
                if event == "sqlite3.connect" and isinstance(path, str) and path.startswith("file:"):
                    path = path[5:].partition("?")[0]  # a database that is named by a URI
                self._prepare(path, needed)

    def _prepare(self, path: Any, needed: str) -> None:
        thread = _thread.get_ident()
        if thread in self._busy or isinstance(path, int):
            return  # what this module does itself, or a file that is open already
        self._busy.add(thread)
        try:
            self.make_own(os.fsdecode(path), needed)
        except (TypeError, ValueError):
            pass  # no path: Python itself will say so
        finally:
            self._busy.discard(thread)

    def make_own(self, path: str, needed: str) -> None:
        """Follow a path below the run's folder, and replace every link of ours on the way to what is changed."""
        absolute = _from_here(path)
        for place, is_last, is_ours in self._steps(absolute, needed != _NAME_ONLY) if absolute is not None else ():
            if is_ours:
                replace = _replace_folder if not is_last else REPLACEMENTS.get(needed)
                if replace is not None:
                    self._replace_once(place, replace)

    def _steps(self, absolute: str, to_the_end: bool, links: int = MOST_LINKS) -> Iterator[tuple[str, bool, bool]]:
        """Yield the places that a path leads through below the run's folder: path, is it the last, does it mirror.

        A link that the script has made is followed; the last one with `to_the_end` only.
        """
        if not absolute.startswith(self._run):
            return
        place = self._run[:-1]
        parts = [part for part in absolute[len(self._run) :].split("/") if part not in ("", ".")]
        for index, part in enumerate(parts):
            place = os.path.dirname(place) if part == ".." else f"{place}/{part}"
            if not place.startswith(self._run):
                return
            is_last = index == len(parts) - 1
            is_ours = self._is_ours(place)
            if not is_ours and os.path.islink(place) and (to_the_end or not is_last):
                target = os.path.join(os.path.dirname(place), os.readlink(place), *parts[index + 1 :])
                if links:
                    yield from self._steps(target, to_the_end, links - 1)
                return
            yield place, is_last, is_ours

    def _replace_once(self, place: str, replace: Callable[[str], None]) -> None:
        """Replace a link, unless another thread, or another rank in code/, has just done so."""
        import fcntl

        lock = os.open(self._run, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks
            if self._is_ours(place):
                replace(place)
        finally:
            try:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has the lock as well
            except OSError:
                pass
            os.close(lock)

    def _is_ours(self, place: str) -> bool:
        """Tell whether a path is a link that mirrors the project, and not a folder that is meant to be written to."""
        try:
            os.readlink(place)
        except OSError:
            return False
        real = _real(place)
        mirrors = real.startswith((self._code, self._project))
        return mirrors and not any(real == folder or real.startswith(folder + "/") for folder in self._shared)


def _from_here(path: str) -> str | None:
    """A path from the root; None where the current folder has been removed, in which nothing can be made."""
    try:
        return path if path.startswith("/") else os.path.join(os.getcwd(), path)
    except OSError:
        return None


def _replace_by_empty(link: str) -> None:
    """Put an empty file in a link's place, with the mode of the one it led to."""
    if not os.path.exists(link):
        os.unlink(link)
    elif os.path.isfile(link):  # a pipe or a device is written to, not replaced
        beside = _beside(link)
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT, os.stat(link).st_mode & 0o777 | 0o200))
        os.replace(beside, link)


def _replace_file(link: str) -> None:
    if not os.path.isfile(link):
        return
    import shutil

    beside = _beside(link)
    try:
        shutil.copy2(link, beside)
        os.replace(beside, link)
    except OSError:
        if os.path.lexists(beside):
            os.unlink(beside)
        raise


def _replace_folder(link: str) -> None:
    """Put a folder in a link's place, with folders and links to files like the one it led to."""
    if not os.path.isdir(link):
        return
    beside = _beside(link)
    try:
        _mirror(_real(link), beside, [MOST_ENTRIES])
    except OSError:
        import shutil

        shutil.rmtree(beside, ignore_errors=True)
        raise
    if _exchange(beside, link):
        os.unlink(beside)
    else:
        os.unlink(link)
        os.rename(beside, link)


def _mirror(folder: str, target: str, left: list[int]) -> None:
    """Make a folder of links, at all levels: os.walk does not go into a folder that is a link."""
    os.mkdir(target, 0o700)
    entries = list(os.scandir(folder))
    left[0] -= len(entries)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and left[0] > 0:
            _mirror(entry.path, f"{target}/{entry.name}", left)
        else:
            os.symlink(entry.path, f"{target}/{entry.name}")


def _beside(path: str) -> str:
    return f"{os.path.dirname(path)}/.{os.getpid()}.{_thread.get_ident()}"


REPLACEMENTS: dict[str, Callable[[str], None]] = {
    _FOLDER_NEEDED: _replace_folder,
    _COPY_NEEDED: _replace_file,
    _NOTHING_NEEDED: _replace_by_empty,
}
"""What is done to a link before what it leads to is changed; a name alone can be changed as it is."""


def _exchange(first: str, second: str) -> bool:
    """Exchange two names in one step, so that whoever reads meanwhile finds one or the other; False where it cannot be.

    Neither old C libraries nor all file systems can.
    """
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(-100, os.fsencode(first), -100, os.fsencode(second), 2) == 0
