"""Processes of one host: starting them, finding all their descendants, ending them."""

from __future__ import annotations

import ctypes
import os
import signal

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHANGED_HERE = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD)
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""What a process does to itself, however much else is being stopped."""
LARGEST_ENVIRONMENT = 1 << 20
_prctl = ctypes.CDLL(None).prctl


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process, so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


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
        die_with_parent(parent)
        if keep is not None:
            os.set_inheritable(keep, True)
        source_of_input = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        for source, target in ((source_of_input, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(cwd)
        signal.set_wakeup_fd(-1)
        for number in _CHANGED_HERE:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(argv[0], list(argv), env)
    except BaseException as error:
        os.write(2, f"mslaunch: cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


class ProcessStat:
    """One process, as /proc/PID/stat has it."""

    __slots__ = ("began", "name", "pages", "parent", "session", "state", "threads", "ticks")

    def __init__(self, text: bytes) -> None:
        head, _, rest = text.rpartition(b")")
        fields = rest.split()
        self.name = head.partition(b"(")[2].decode("utf-8", "replace")
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.ticks = sum(map(int, fields[11:15]))  # with those of children that it has waited for
        self.threads = int(fields[17])
        self.began = int(fields[19])
        self.pages = int(fields[21])


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel says of a process; None where it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return ProcessStat(file.read())
    except (OSError, IndexError, ValueError):
        return None


def read_stats(pids: Iterable[int] | None = None) -> dict[int, ProcessStat]:
    """Return what the kernel says of these processes, or of all, without those that have gone."""
    if pids is None:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = {}
    for pid in pids:
        stat = read_stat(pid)
        if stat is not None:
            stats[pid] = stat
    return stats


def root_of(pid: int, roots: Container[int], stats: Mapping[int, ProcessStat]) -> int | None:
    """Return the first of these roots from a process upwards, itself included; None where none is above it."""
    while pid not in roots:
        if pid not in stats:
            return None
        pid = stats[pid].parent
    return pid


def handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    mask = _status_field(pid, "SigCgt:")
    return mask is not None and bool(int(mask, 16) >> (number - 1) & 1)


def is_own(pid: int) -> bool:
    """Tell whether a process runs as this user: root could signal any."""
    return _status_field(pid, "Uid:") == str(os.geteuid())


def _status_field(pid: int, title: str) -> str | None:
    """Return the first word of a line of /proc/PID/status; None where the process has gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(line for line in file if line.startswith(title)).split()[1]
    except (OSError, StopIteration):
        return None


def catching(root: int, number: int) -> list[int]:
    """Return the first processes, from `root` down, that handle a signal; what these have started is their business."""

    def catches(pid: int) -> bool:
        return handles(pid, number)

    if catches(root):
        return [root]
    return list(filter(catches, descendants(root, catches)))


def descendants(root: int, stop_at: Callable[[int], bool] | None = None) -> list[int]:
    """Return every live process below `root` (zombies have ended already), but none below those to stop at."""
    children: dict[int, list[int]] = {}
    for pid, stat in read_stats().items():
        if stat.state not in (b"Z", b"X") or _has_threads(pid):
            children.setdefault(stat.parent, []).append(pid)
    below: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            below.append(child)
            if stop_at is None or not stop_at(child):
                waiting.append(child)
    return below


def _has_threads(pid: int) -> bool:
    """A process whose first thread is a zombie lives on while its other threads do."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


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
    stat = read_stat(pid)
    return stat is not None and stat.state in (b"T", b"t")


def cpu_ticks(roots: Sequence[int]) -> dict[int, int]:
    """Return the CPU time, in clock ticks, that each of these processes and all its descendants have used."""
    totals = dict.fromkeys(roots, 0)
    stats = read_stats()
    for pid, stat in stats.items():
        root = root_of(pid, totals, stats)
        if root is not None:
            totals[root] += stat.ticks
    return totals


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; none where they may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return parse_environment(file.read(LARGEST_ENVIRONMENT))
    except OSError:
        return {}


def parse_environment(data: bytes) -> dict[str, str]:
    """Read variables as `env -0` prints them."""
    pairs = (pair.partition("=") for pair in os.fsdecode(data).split("\0"))
    return {name: value for name, _, value in pairs if name}


def belongs(pid: int, variable: str) -> bool:
    """Tell whether a process is there and was started with this variable, written NAME=VALUE."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(variable) in file.read().split(b"\0")
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
    stat = read_stat(pid)
    return str(pid) if stat is None else f"{pid} ({stat.name}, state {stat.state.decode()})"


def outcome(status: int) -> dict[str, Any]:
    """Turn a wait status into an exit code or a signal."""
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": None}
