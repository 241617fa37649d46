"""Every error that a person can meet: data in, one sentence with its fix out."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Every exit code that mslaunch gives by itself, with its meaning; any other is a rank's."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    __str__ = int.__repr__  # as a number, in every version of Python

    SUCCESS = 0, "all ranks succeeded"
    FAILURE = 1, "the run failed and no rank has a code of its own; `diff`, `compare`: the two differ"
    WRONG_REQUEST = (
        2,
        "the request is wrong (flags, config, rank table, checkpoint); nothing was started "
        "(a script may also end with 2)",
    )
    NOT_READY = (
        3,
        "a machine is not ready (host, port, device, Python, runs folder, `launch.setup`); nothing was started",
    )
    TIME_IS_UP = (
        124,
        "time limit (`--timeout`), hang (`--stall-timeout`) or ranks that were silent and idle after another had ended "
        "(`launch.exit_skew`)",
    )
    LOST = 125, "a host, its agent or MindSpore's scheduler was lost"
    HUNG_UP = 129, "SIGHUP; everything was stopped first"
    INTERRUPTED = 130, "Ctrl-C; everything was stopped first"
    TERMINATED = 143, "SIGTERM or `mslaunch stop`; everything was stopped first"


def signal_code(number: int) -> int:
    """Return the exit code of what a signal has ended."""
    return 128 + number


class MslaunchError(Exception):
    """Base of all expected errors; the command line prints it as one line and exits with `exit_code`."""

    exit_code: int = ExitCode.WRONG_REQUEST

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        """Its sentences, a line each; a name from a file may hold the end of a line, which begins no sentence."""
        super().__init__("\n".join(lines))


class RequestError(MslaunchError):
    """What was asked cannot be done as asked; nothing was started."""


class NotReadyError(MslaunchError):
    """The request is right, the machine is not ready for it; nothing was started."""

    exit_code = ExitCode.NOT_READY


class ConfigError(RequestError):
    """One or more wrong places in a configuration, each with where it stands."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(*lines)


class Disagreement(RequestError):
    """Two sources name different numbers for the same thing."""

    def __init__(self, what: str, first: tuple[int, str], second: tuple[int, str], fix: str) -> None:
        super().__init__(f"{what}: {first[1]} says {first[0]}, but {second[1]} says {second[0]}. {fix}")


class ScriptMissing(RequestError):
    def __init__(self, path: str, asked_by: str, near: str = "") -> None:
        fix = near or ". Name it with --script FILE or launch.script in the YAML."
        super().__init__(f"{path}: no such script ({asked_by}){fix}")


class RankTableUnreadable(RequestError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path}: not a rank table: {why}. "
            "Compare it with a sample: mslaunch examples copy rank_tables/v1.0_1x8.json"
        )


class StrategyUnreadable(RequestError):
    def __init__(self, path: str, why: str, hint: str = "") -> None:
        fix = hint or "Name the file that MindSpore wrote for strategy_ckpt_save_file"
        super().__init__(f"{path}: not a strategy file: {why}. {fix}.")


NO_FILE = "it is no regular file"
_NOT_READ = {
    os.strerror(errno.EACCES): ("it may not be read by you", "Ask its owner for the right to read it"),
    os.strerror(errno.ENOENT): ("no such file", "Copy it there; if it was removed meanwhile, run it again"),
    NO_FILE: (NO_FILE, "Name a file"),
}
"""What to say, and the fix, of files that are none the worse for it: copying them again would not help."""


class ShardUnreadable(RequestError):
    def __init__(self, path: str, why: str) -> None:
        self.why = why
        what, fix = _NOT_READ.get(why, ("not a whole checkpoint: {}", "Copy it again, or take an earlier step"))
        self.what = what.format(why)
        super().__init__(f"{path}: {self.what}. {fix}.")


class HoldsTorch(ShardUnreadable):
    """A file of PyTorch's where one of MindSpore's is wanted."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "it holds PyTorch's weights")
        command = f"mslaunch ckpt import {shlex.quote(path)} --to net.ckpt"
        MslaunchError.__init__(self, f"{path} holds PyTorch's weights: import them first: {command}")


class PluginBroken(RequestError):
    def __init__(self, name: str, group: str, package: str, error: BaseException) -> None:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        super().__init__(f"plug-in {name} ({group}, from {package}) cannot be loaded: {why}")


class PortBusy(NotReadyError):
    def __init__(self, port: int, holder: str | None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"port {port} is in use{by}. Give another --master-port, or leave it out and a free one is chosen."
        )


class NoMindSpore(NotReadyError):
    def __init__(self, python: str, asked_by: str) -> None:
        super().__init__(
            f"{python} has no MindSpore, and {asked_by} needs it. "
            f'Run {python} -m pip install mindspore "numpy<2", or name another Python with launch.python.'
        )


class NoDevices(NotReadyError):
    """This machine has none of the devices that a job asks for: a login node, for example."""

    def __init__(self, target: str, where: str) -> None:
        super().__init__(
            f"this machine has no {target} device, and device_target in {where} asks for one. "
            f"Write device_target: CPU, or launch it where there is one."
        )


class PythonMissing(NotReadyError):
    def __init__(self, python: str, asked_by: str) -> None:
        super().__init__(f"{python}: no such Python ({asked_by}). Name one that can be run with launch.python.")


class HostsNotReady(NotReadyError):
    """One or more hosts that cannot run the job, each with its reason and the fix."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(*"\n".join(lines).split("\n"))  # what ssh and other programs have said may be several


class RunsFolderUnwritable(NotReadyError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: cannot write the run's folder: {why}. Give another --runs-dir.")


class LaunchedElsewhere(NotReadyError):
    def __init__(self, name: str, place: str, verb: str) -> None:
        super().__init__(f"{name} was launched on {place}. Run `mslaunch {verb}` there.")


_LIMITS = {
    errno.EAGAIN: "no further process or thread can be started. Raise the limits (ulimit -u, ulimit -v), or end some",
    errno.EMFILE: "no further file can be opened. Raise the limit (ulimit -n)",
    errno.ENFILE: "this machine can open no further file. Close some, or raise fs.file-max",
    errno.ENOMEM: "there is no memory left. Raise the limit (ulimit -v), or end something",
    errno.ENOSPC: "the disk is full. Free some space, or give another --runs-dir",
    errno.EDQUOT: "the disk quota is used up. Free some space, or give another --runs-dir",
}
_LIMIT_WORDS = {
    "can't start new thread": errno.EAGAIN,
    "Too many open files": errno.EMFILE,
    "failed to map segment": errno.ENOMEM,
    "Cannot allocate memory": errno.ENOMEM,
    "error return without exception set": errno.ENOMEM,  # SystemError: Python has no memory to say so
    "without setting an exception": errno.ENOMEM,
    "No space left on device": errno.ENOSPC,
}


def limit_of(error: BaseException) -> NotReadyError | None:
    """Return what to say of an error that a limit of the machine has caused; None for any other."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, (MemoryError, SystemError)):  # what Python's own C code raises where it has no memory
        number = errno.ENOMEM
    elif number is None:
        number = next((code for phrase, code in _LIMIT_WORDS.items() if phrase in str(error)), None)
    return NotReadyError(f"{_LIMITS[number]}.") if number in _LIMITS else None


def start_advice(why: str) -> str:
    """What to do where a process could not be started, by what the system said: `. Raise the limit`, or nothing."""
    phrases = {"Resource temporarily unavailable": errno.EAGAIN, **_LIMIT_WORDS}
    number = next((code for phrase, code in phrases.items() if phrase in why), None)
    return f". {_LIMITS[number].partition('. ')[2]}" if number else ""


class RunExists(RequestError):
    def __init__(self, run_id: str, path: str) -> None:
        super().__init__(f"{path}: a run called {run_id} is there already. Give another --run-id, or leave it out.")


class RecordUnreadable(RequestError):
    def __init__(self, path: str, error: Exception) -> None:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        super().__init__(f"{path}: not a record that this mslaunch can read ({why}). Read the folder's logs instead.")


class NewerRecord(RecordUnreadable):
    """A file of a run that a newer mslaunch has written."""

    def __init__(self, path: str, version: str, readable: str) -> None:
        MslaunchError.__init__(
            self,
            f"{path}: written by a newer mslaunch (schema version {version}, this one reads {readable}). "
            f"Use that one, or a newer one.",
        )


class NotOwner(RequestError):
    """A verb that acts was given a run, or a file in its folder, of another user."""

    def __init__(self, path: str, owner: str | None, doing: str, is_root: bool) -> None:
        whose = f"belongs to {owner}" if owner else "is a link, or cannot be looked at"
        fix = f"Ask {owner or 'its owner'} to do it."
        if is_root and owner:
            fix = f"Give --as-owner, and it is done with the rights of {owner}."
        super().__init__(f"{path}: {whose}, and {doing} is for your own runs only. {fix}")


class NoSuchRun(RequestError):
    def __init__(self, name: str, runs_dir: str, runs: Sequence[str]) -> None:
        if not runs:
            text = f"{runs_dir}: no runs here yet. Start one with `mslaunch train`, or name the folder with --runs-dir."
        else:
            text = f"{runs_dir}: no run has {name!r} in its name. `mslaunch ps` lists them; the newest is {runs[-1]}."
        super().__init__(text)


class AmbiguousRun(RequestError):
    def __init__(self, name: str, matches: Sequence[str]) -> None:
        listed = ", ".join(matches[:5])
        fix = "Name one by its path." if any(match.startswith("/") for match in matches) else "Type more of the name."
        super().__init__(f"{name!r} fits {len(matches)} runs ({listed}). {fix}")


class NoSuchSweep(RequestError):
    def __init__(self, name: str, runs_dir: str, sweep_ids: Sequence[str], ambiguous: bool) -> None:
        listed = ", ".join(sweep_ids[-5:])
        if ambiguous:
            text = f"{name!r} fits {len(sweep_ids)} sweeps ({listed}). Type more of the name."
        elif sweep_ids:
            text = f"{runs_dir}: no sweep starts with {name!r}. There are: {listed}."
        else:
            text = f"{runs_dir}: no sweeps here yet. Leave --resume out, or name the folder with --runs-dir."
        super().__init__(text)


class SweepAlive(RequestError):
    def __init__(self, sweep_id: str, run: str = "") -> None:
        what = f" (run {run})" if run else ""
        super().__init__(f"{sweep_id} is still under way{what}. Wait for its end, or stop it first; then resume it.")


class CombinationError(MslaunchError):
    """One combination of a sweep cannot be run; nothing was started."""

    def __init__(self, label: str, error: MslaunchError) -> None:
        self.exit_code = error.exit_code
        super().__init__(*(f"{label}: {line}" for line in error.lines))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest choice, or for all that end in this word, or nothing."""
    from difflib import get_close_matches

    names = list(choices)
    near = [name for name in names if name.endswith(f"_{word}")] or get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
