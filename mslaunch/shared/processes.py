"""Processes of one host: starting them, finding all their descendants, ending them."""

from __future__ import annotations

import ctypes
import os
import signal

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHANGED_HERE = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD)
_prctl = ctypes.CDLL(None).prctl


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process, so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: Sequence[str], env: dict[str, str], cwd: str, log: str, keep: int | None = None, stdin: int | None = None
) -> int:
    """Start a process in a session of its own, output going straight to its log; return its pid.

    It is killed when this process dies, reads `stdin` or nothing, and the file `keep` stays open in it. This process
    has one thread, so fork and exec are safe and, unlike subprocess, leave the death signal to be set in between.
    """
    for folder in (os.path.dirname(log), cwd):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # here, where its failure can be told
    try:
        return _fork(argv, env, cwd, output, keep, stdin)
    finally:
        os.close(output)


def _fork(argv: Sequence[str], env: dict[str, str], cwd: str, output: int, keep: int | None, stdin: int | None) -> int:
    parent = os.getpid()
    # A signal that came between fork and exec would run this process's handlers, in the child, and be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if keep is not None:
            os.set_inheritable(keep, True)
        _become(argv, env, cwd, output, stdin)
    except BaseException as error:
        os.write(2, f"mslaunch: cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def _become(argv: Sequence[str], env: dict[str, str], cwd: str, output: int, stdin: int | None) -> None:
    source_of_input = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
    for source, target in ((source_of_input, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(cwd)
    signal.set_wakeup_fd(-1)
    for number in _CHANGED_HERE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvpe(argv[0], list(argv), env)


def descendants(root: int) -> list[int]:
    """Return every live process below `root` (zombies have ended already)."""
    return _below(root, lambda _: False)


def handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            mask = next(line for line in file if line.startswith("SigCgt:")).split()[1]
    except (OSError, StopIteration):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def catching(root: int, number: int) -> list[int]:
    """Return the first processes, from `root` down, that handle a signal; what these have started is their business."""

    def catches(pid: int) -> bool:
        return handles(pid, number)

    return [root] if catches(root) else [pid for pid in _below(root, catches) if catches(pid)]


def _below(root: int, stop_at: Callable[[int], bool]) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
            except (OSError, IndexError, ValueError):
                continue
            if state not in (b"Z", b"X") or _has_threads(name):
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            if not stop_at(child):
                waiting.append(child)
    return found


def has_children() -> bool:
    """Tell whether this process has children, ended ones that nobody has reaped included.

    A look at /proc may miss a process that is forked meanwhile. Descendants of a subreaper lose their parents to it, so
    one that has no child has no descendant either.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Tell whether a signal or a debugger has stopped a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def cpu_ticks(roots: Sequence[int]) -> dict[int, int]:
    """Return the CPU time, in clock ticks, that each of these processes and all its descendants have used."""
    used: dict[int, int] = {}
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
                parents[int(name)], used[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
            except (OSError, IndexError, ValueError):
                continue
    totals = dict.fromkeys(roots, 0)
    for pid, ticks in used.items():
        above = pid
        while above not in totals and above in parents:
            above = parents[above]
        if above in totals:
            totals[above] += ticks
    return totals


def belongs(pid: int, variable: str) -> bool:
    """Tell whether a process is there and was started with this variable, written NAME=VALUE."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(variable) in file.read().split(b"\0")
    except OSError:
        return False


def is_own(pid: int) -> bool:
    """Tell whether a process runs as this user: root could signal any."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            user = next(line for line in file if line.startswith("Uid:")).split()[1]
    except (OSError, StopIteration):
        return False
    return int(user) == os.geteuid()


def _has_threads(name: str) -> bool:
    """A process whose first thread is a zombie lives on while its other threads do."""
    try:
        return len(os.listdir(f"/proc/{name}/task")) > 1
    except OSError:
        return False


def has_loaded(pid: int, library: str) -> bool:
    """Tell whether a process has a library in memory."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any(library in line for line in file)
    except OSError:
        return False


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone, or one that has become another user's
            pass


def describe(pid: int) -> str:
    """Name a process for people: `4242 (python, state D)`."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
    except (OSError, IndexError, ValueError):
        return str(pid)
    return f"{pid} ({name}, state {rest.split()[0]})"


def outcome(status: int) -> dict[str, Any]:
    """Turn a wait status into an exit code or a signal."""
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": None}
