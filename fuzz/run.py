"""Runs the cases of a border in child processes, each case within bounds of time and memory, and collects findings."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from random import Random
from types import FrameType

from mslaunch.errors import MslaunchError

CASE_SECONDS = 2.0
"""Processor time of one case: a busy machine is no finding."""
HUNG_SECONDS = 60.0
"""Time without a case being finished after which a child hangs in code that no signal interrupts."""
CASE_MEMORY = 512 << 20
"""What a child may use on top of what it has at its start."""
_FORK = multiprocessing.get_context("fork")
_SLOT = struct.Struct("q")


@dataclass(frozen=True, slots=True)
class Border:
    """Something that is read from outside: samples, how they are changed, and the code that reads them."""

    name: str
    samples: tuple[bytes, ...]
    mutate: Callable[[Random, bytes, tuple[bytes, ...]], bytes]
    open: Callable[[Path], Callable[[bytes], object]]
    """Given an empty folder, returns the function that reads one input. It may raise MslaunchError, nothing else."""


def samples(border: str) -> tuple[bytes, ...]:
    """Return the valid inputs of a border that fuzz/samples holds."""
    return tuple(path.read_bytes() for path in sorted((Path(__file__).parent / "samples" / border).iterdir()))


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that was neither read nor refused with a sentence."""

    case: int
    what: str
    where: str
    data: bytes
    trace: str


@dataclass(slots=True)
class Outcome:
    """What came of a border."""

    cases: int = 0
    count: int = 0
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    """The first of each kind, by what it is and where it was raised."""

    def add(self, finding: Finding) -> None:
        self.count += 1
        known = self.findings.setdefault((finding.what, finding.where), finding)
        if finding.case < known.case:
            self.findings[(finding.what, finding.where)] = finding


class OutOfTime(BaseException):
    """A case has used up its processor time; no code under test catches this."""


def make_case(border: Border, seed: int, case: int) -> bytes:
    """Return the input of one case, always the same for the same seed."""
    random = Random(f"{seed} {border.name} {case}")
    return border.mutate(random, random.choice(border.samples), border.samples)


def run_border(
    border: Border, seed: int, cases: range, processes: int, show: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run cases of a border in several processes; one that crashes or hangs is a finding, and another goes on."""
    outcome = Outcome(len(cases))
    shares = [cases[k::processes] for k in range(processes)]
    children = [_Child(border, seed, share) for share in shares if share]
    seen = 0.0
    while children:
        for end in wait([child.end for child in children], timeout=1.0):
            child = next(one for one in children if one.end is end)
            if not child.receive(outcome):
                children.remove(child)
                if rest := child.finish(outcome):
                    children.append(_Child(border, seed, rest))
        for child in children:
            child.end_if_hung()
        if time.monotonic() - seen > 0.5:
            seen = time.monotonic()
            left = sum(child.left for child in children)
            show(len(cases) - left)
    return outcome


class _Child:
    """A process that runs some of the cases, and says in shared memory which one it is at."""

    def __init__(self, border: Border, seed: int, share: range) -> None:
        self.border, self.seed, self.share = border, seed, share
        self.end, theirs = _FORK.Pipe(duplex=False)
        self._place = mmap.mmap(-1, _SLOT.size)
        self._folder = tempfile.TemporaryDirectory(prefix="mslaunch-fuzz-", dir=_fast_folder())
        work = (border, seed, share, theirs, self._place, self._folder.name)
        self._process: ForkProcess = _FORK.Process(target=_run_share, args=work)
        self._process.start()
        theirs.close()
        self._at, self._moved, self._hung = -1, time.monotonic(), False

    @property
    def at(self) -> int:
        """How many of its cases it has begun."""
        at: int = _SLOT.unpack_from(self._place)[0]
        return at

    @property
    def left(self) -> int:
        return len(self.share) - self.at

    def receive(self, outcome: Outcome) -> bool:
        """Take a finding; return False when nothing more is to come."""
        try:
            outcome.add(self.end.recv())
        except EOFError:
            return False
        return True

    def end_if_hung(self) -> None:
        if self.at != self._at:
            self._at, self._moved = self.at, time.monotonic()
        elif time.monotonic() - self._moved > HUNG_SECONDS and not self._hung:
            self._hung = True
            self._process.kill()

    def finish(self, outcome: Outcome) -> range:
        """Wait for the process; return the cases that it has left, where it crashed or was ended."""
        self._process.join()
        self._folder.cleanup()
        code, at = self._process.exitcode, self.at
        if code == 0:
            return range(0)
        case = self.share[max(0, at - 1)]
        what = "hangs, and no signal interrupts it" if self._hung else f"the process ended with {code}"
        outcome.add(Finding(case, what, "", make_case(self.border, self.seed, case), ""))
        return self.share[max(1, at) :]


def _run_share(border: Border, seed: int, share: range, end: Connection, place: mmap.mmap, folder: str) -> None:
    signal.signal(signal.SIGPROF, _out_of_time)
    os.chdir(folder)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115, PTH123 -- until the end
    read = border.open(Path(folder))
    read(border.samples[0])  # imports what is imported late, before memory is bounded
    _bound_memory()
    for number, case in enumerate(share):
        _SLOT.pack_into(place, 0, number + 1)
        data = make_case(border, seed, case)
        if finding := run_case(read, case, data):
            end.send(finding)


def run_case(read: Callable[[bytes], object], case: int, data: bytes) -> Finding | None:
    """Read one input; None where that ended as it should."""
    try:
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        try:
            read(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except MslaunchError as error:
        if not str(error).strip():
            return Finding(case, f"{type(error).__name__} without a word", "", data, "")
    except (Exception, OutOfTime) as error:
        trace = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in trace if "/mslaunch/" in frame.filename] or list(trace)
        where = f"{ours[-1].filename.rpartition('/mslaunch/')[2]}:{ours[-1].lineno}"
        shown = list(itertools.islice(traceback.TracebackException.from_exception(error, limit=-12).format(), 60))
        return Finding(case, type(error).__name__, where, data, "".join(shown)[-4000:])
    return None


def _out_of_time(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise OutOfTime(f"more than {CASE_SECONDS:g} s of processor time")


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + CASE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
