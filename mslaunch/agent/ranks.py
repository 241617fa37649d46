"""The ranks of a host, its scheduler and its scripts: starting them, noticing their end, ending them."""

from __future__ import annotations

import os
import signal
import time
from collections import deque

from mslaunch.agent.kernel_kills import KernelKills
from mslaunch.agent.preparation import Preparation
from mslaunch.agent.rank_logs import LogTimes, ShownLogs, put_aside
from mslaunch.agent.rank_messages import read_exit_file
from mslaunch.agent.stack_signal import StackTaking
from mslaunch.agent.standard_input import suspend
from mslaunch.shared import layout, processes, work_folder

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from mslaunch.agent.launcher_stream import LauncherStream
    from mslaunch.agent.metrics.measuring import AttemptMetrics
    from mslaunch.agent.nested_launchers import NestedLaunchers
    from mslaunch.agent.rank_messages import MessagePipe
    from mslaunch.agent.standard_input import StandardInput
    from mslaunch.shared import messages

LOOK_EVERY = 1.0
START_SECONDS = 0.1  # how long ranks are started for before the loop looks at everything else again
MOST_DEAD = 100
RECENT = 300.0  # a process that was killed so many seconds before a rank failed may be why it did


class Child:
    """One planned process. A rank that a script starts is known by the messages of its exit recorder."""

    def __init__(self, planned: messages.PlannedProcess) -> None:
        self.planned = planned
        self.role = planned["role"]
        self.rank = planned["rank"]
        self.log = planned["log"]
        self.by_script = planned["start"] == "by-script"
        self.pid: int | None = None
        self.running = False
        self.joining = False
        self.raised = False
        self.missed: float | None = None
        self.dead: dict[int, DeadProcess] = {}
        """Processes that it has started and that a signal has killed, in this order."""

    @property
    def has_vanished(self) -> bool:
        """Tell whether it is a rank that a script has started, and that has gone without a message."""
        return self.by_script and self.running and not os.path.exists(f"/proc/{self.pid}")

    def add_dead(self, dead: DeadProcess) -> None:
        """Remember a process that this one has started; SIGTERM is how a rank ends its own."""
        if dead.signal not in (None, signal.SIGTERM) and len(self.dead) < MOST_DEAD:
            self.dead[dead.pid] = dead


class Children:
    """All planned processes of an attempt."""

    def __init__(self, planned: Iterable[messages.PlannedProcess] = ()) -> None:
        self._children = [Child(process) for process in planned]
        self.by_pid: dict[int, Child] = {}  # those that the agent itself has started and that have not been reaped
        self.speakers = {child.rank: child for child in self._children if child.role in ("worker", "scheduler")}
        """Who sends messages: ranks by their number, the scheduler by None."""
        self.ranks = {child.rank: child for child in self._children if child.rank is not None}

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    @property
    def running_ranks(self) -> dict[int, tuple[int, str]]:
        """Return pid and log of every rank that runs."""
        return {rank: (child.pid, child.log) for rank, child in self.ranks.items() if child.running and child.pid}

    @property
    def rank_pids(self) -> dict[int, int]:
        """Return the rank of every pid that was one, those that have ended included."""
        return {child.pid: rank for rank, child in self.ranks.items() if child.pid}


class DeadProcess:
    """A process that has ended: its number, its name, the leader of its session and the signal that killed it."""

    def __init__(self, pid: int, name: str = "", session: int = 0, killed_by: int | None = None) -> None:
        self.pid = pid
        self.name = name
        self.session = session
        self.signal = killed_by
        self.seen = time.monotonic()

    def describe(self) -> str:
        return f"{self.pid} ({self.name})" if self.name else str(self.pid)


def reap_all() -> Iterator[tuple[DeadProcess, int]]:
    """Reap exited children, adopted orphans included; yield each with its wait status."""
    while True:
        try:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is None:
                return
            stat = processes.read_stat(exited.si_pid)  # before it is reaped: then nothing is known of it
            pid, status = os.waitpid(exited.si_pid, 0)
        except ChildProcessError:
            return
        dead = DeadProcess(pid, killed_by=processes.outcome(status)["signal"])
        if stat is not None:
            dead.name, dead.session = stat.name, stat.session
        yield dead, status


class Ranks:
    """All processes of the run on this host, attempt by attempt."""

    def __init__(self, output: LauncherStream, pipe: MessagePipe, stdin: StandardInput) -> None:
        self.output = output
        self.children = Children()
        self.shown_logs = ShownLogs(output)
        self.log_times = LogTimes()
        self.metrics: AttemptMetrics | None = None
        self.preparation = Preparation(output, self._launch_with, lambda: self.stopping)
        self.stopping = False  # nothing is started any more
        self._terminated = False
        self._pipe = pipe
        self._stdin = stdin
        self._order: messages.RunOrder
        self._env: dict[str, str] = {}
        self._to_start: deque[Child] = deque()
        self._nested: NestedLaunchers | None = None
        self._kernel_kills: KernelKills
        self._stacks: StackTaking | None = None
        self._looked = 0.0

    def launch(self, order: messages.RunOrder) -> None:
        """Start an attempt: its preparation, then all that the plan starts at once."""
        self._order = order
        self.stopping = self._terminated = False
        self._stdin.begin(order["stdin"])
        self.shown_logs.clear()  # of a rank that could not be ended in the attempt before
        self.children = Children(order["processes"])
        put_aside([child.log for child in self.children], order["attempt"], self.output)
        ranks = self.children.ranks
        self.log_times.begin([child.log for child in ranks.values()])
        self.metrics = self._nested = None
        if order["metrics"] is not None and ranks:
            from mslaunch.agent.metrics.measuring import AttemptMetrics

            self.metrics = AttemptMetrics(order, self.output, self.children)
        if order["reports_launchers"]:
            from mslaunch.agent.nested_launchers import NestedLaunchers

            self._nested = NestedLaunchers(self.output)
        self._kernel_kills = KernelKills()
        self.preparation.begin(order)

    def _launch_with(self, env: dict[str, str]) -> None:
        order = self._order
        self._stacks = None
        self._env = {**env, "MSLAUNCH_AGENT": self._pipe.path}
        self._publish_address()
        for rank, child in self.children.ranks.items():
            if rank in order["tail"]:  # at a terminal as it is written: a prompt has no newline
                self.shown_logs.add(rank, child.log, raw=self._stdin.is_terminal_of(rank))
        self._to_start = deque(child for child in self.children if child.planned["start"] == "now")
        self.start_more()

    def _publish_address(self) -> None:
        """Write down where this agent listens, for ranks that mpirun's own daemons start."""
        host = next((child.planned["host"] for child in self.children if child.by_script), None)
        if host is not None:
            path = os.path.join(self._order["run_dir"], layout.agent_address(host))
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(self._pipe.path)
            except OSError:
                pass  # a full disk: ranks below this agent know it all the same

    def start_more(self) -> bool:
        """Start ranks for a moment; return whether some are still to be started."""
        until = time.monotonic() + START_SECONDS
        while self._to_start and time.monotonic() < until:
            self._start(self._to_start.popleft())
        return bool(self._to_start)

    def _start(self, child: Child) -> None:
        planned = child.planned
        env = {**self._env, **planned["env"]}
        stdin = self._stdin.lend(child.rank)
        try:
            child.pid = processes.start(planned["argv"], env, planned["cwd"], child.log, stdin=stdin)
        except OSError as error:
            self.output.start_failed(child.role, child.rank, error)
        else:
            self.children.by_pid[child.pid] = child
            self._report_started(child)

    def _report_started(self, child: Child) -> None:
        child.running = True
        self.output.event("started", role=child.role, rank=child.rank, pid=child.pid)

    def start_scheduler(self) -> None:
        for child in self.children:
            if child.planned["start"] == "on-import" and child.pid is None and not self.stopping:
                self._start(child)

    @property
    def running(self) -> bool:
        return self.preparation.is_running or bool(self._to_start) or any(child.running for child in self.children)

    def look(self, now: float) -> None:
        """Look at what it is time to look at: logs, numbers, processes that no message tells of."""
        self._look_for_mindspore(now)
        self._report_vanished(now, LOOK_EVERY)
        if self._nested is not None and not self.stopping:
            self._nested.look(self.children.rank_pids, now)
        self.log_times.look(now)
        if self.metrics is not None:
            self.metrics.look(now)

    def _look_for_mindspore(self, now: float) -> None:
        """Start the scheduler also for ranks that import MindSpore in a child or after exec, which send no message."""
        is_waiting = any(child.planned["start"] == "on-import" and child.pid is None for child in self.children)
        if not is_waiting or self.stopping or now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        below = processes.descendants(os.getpid())
        if any(processes.has_loaded(pid, "/mindspore/_c_expression") for pid in below):
            self.start_scheduler()

    def _report_vanished(self, now: float, patience: float) -> None:
        """Report ranks that a script has started, and that have gone before their exit recorders could report them."""
        for child in self.children:
            if child.has_vanished:
                child.missed = child.missed or now
                if now - child.missed >= patience:
                    self._report_exit(child, *read_exit_file(child.log))

    def receive(self) -> None:
        for message in self._pipe.read():
            self.handle(message)

    def handle(self, message: messages.Message) -> None:
        child = self.children.speakers.get(message["rank"])
        what = message["what"]
        if child is None or (what in ("started", "ended") and not child.by_script):
            return  # the agent itself knows of its own children
        if what == "started":
            child.pid = message["child"]
            self._report_started(child)
        elif what == "ended":
            outcome = {"code": message["code"], "signal": message["signal"], "crashed": message["crashed"]}
            self._report_exit(child, outcome, message["time"])
        elif what == "metrics":
            if self.metrics is not None and child.rank is not None:
                self.metrics.receive(child.rank, message["rows"])
        elif what == "child-killed":
            child.add_dead(DeadProcess(message["child"], killed_by=message["signal"]))
        else:
            self._handle_note(child, message)

    def _handle_note(self, child: Child, message: messages.Message) -> None:
        """Pass on how far a rank has come, or the error that it has raised."""
        what = message["what"]
        if what == "import":
            self.start_scheduler()
        if what == "error":
            child.raised = True
            if self.metrics is not None and child.rank is not None:
                self.metrics.send_now(child.rank)
        child.joining = what == "joining"
        self.output.event(what, rank=child.rank, time=message["time"], message=message["message"])
        if what == "joined":
            self.wake_joining()

    def wake_joining(self) -> None:
        """Cut short the sleeps of ranks that still look for their peers: the first one is through, so all are there."""
        pids = [child.pid for child in self.children if child.joining and child.running and child.pid]
        processes.signal_all(pids, signal.SIGURG)

    def reap(self) -> None:
        """Reap exited children, adopted orphans included, and report those that were planned."""
        exited = list(reap_all())
        for dead, _ in exited:  # what a rank has left behind comes here with it, and may be why it ended
            child = self.children.by_pid.get(dead.session)
            if child is not None and child.pid != dead.pid and not self._terminated and not child.raised:
                child.add_dead(dead)
        for dead, status in exited:
            self.preparation.reaped(dead.pid, status)
            child = self.children.by_pid.pop(dead.pid, None)
            if child is not None and child.running:
                if child.role == "script":
                    self._report_vanished(time.monotonic(), 0.0)
                self._report_exit(child, processes.outcome(status), time.time())

    def _report_exit(self, child: Child, outcome: dict[str, Any], when: float) -> None:
        if not child.running:
            return
        child.running = child.joining = False
        if child.rank is not None:
            self.shown_logs.finish(child.rank)
            self.log_times.finish(child.log)
            if self.metrics is not None:
                self.metrics.finish(child.rank)
            self._stdin.restore(child.rank)
        number = outcome["signal"]
        # mpirun ends the other ranks by itself when one has failed.
        asked = self._terminated or (child.by_script and number in (signal.SIGTERM, signal.SIGKILL))
        if outcome["code"] != 0 and (child.raised or not asked or number == signal.SIGKILL):
            outcome.update(self._find_cause(child, number))
        self.output.event("exited", role=child.role, rank=child.rank, pid=child.pid, time=when, asked=asked, **outcome)

    def _find_cause(self, child: Child, number: int | None) -> dict[str, Any]:
        """Find a process of a rank that was killed before it, and whether it was for lack of memory."""
        victim = self._kernel_kills.find(child.pid or 0, child.dead)
        if victim:
            return {"out_of_memory": True, "child": victim, "child_signal": int(signal.SIGKILL)}
        if victim is not None and number == signal.SIGKILL:
            return {"out_of_memory": True}
        cause: dict[str, Any] = {}
        for dead in child.dead.values():
            if time.monotonic() - dead.seen < RECENT:  # the last one counts
                cause = {"child": dead.describe(), "child_signal": dead.signal}
        if signal.SIGKILL in (number, cause.get("child_signal")):
            cause["kernel"] = self._kernel_kills.describe()
        return cause

    def pulse(self) -> None:
        self.output.event("pulse", quiet=self.log_times.seconds_quiet(time.monotonic()))

    def take_stacks(self) -> None:
        if self._stacks is None:
            running = self.children.running_ranks
            ranks = {rank: (pid, os.path.dirname(log)) for rank, (pid, log) in running.items()}
            self._stacks = StackTaking(ranks, self._env)

    def finish_stacks(self) -> bool:
        """Send the stacks once all are there; return whether some are still on their way."""
        if self._stacks is not None and self._stacks.is_over():
            self.output.event("stacks", stacks=self._stacks.read())
            self._stacks = None
        return self._stacks is not None

    def report_outputs(self) -> None:
        """Leave what the ranks have written in their folders, now that none of them writes any more, and report it."""
        ranks = self.children.ranks
        if not ranks:
            return
        run_dir, workdir = self._order["run_dir"], self._order["workdir"]
        for rank in ranks:
            work_folder.clear(run_dir, rank)
        rows = work_folder.outputs(run_dir, ranks, workdir)
        if rows:
            self.output.event("outputs", outputs=rows)

    def everything(self) -> list[int]:
        """Every process of the run here: all that descend from the agent, and ranks that others have started."""
        pids = processes.descendants(os.getpid()) if processes.has_children() else []
        for pid in self._started_by_others(pids):
            pids += [pid, *processes.descendants(pid)]
        return pids

    def _started_by_others(self, below: list[int]) -> list[int]:
        """Return ranks whose exit recorders have reported them and that do not descend from the agent."""
        pids = [child.pid for child in self.children if child.by_script and child.running and child.pid]
        others = []
        for pid in pids:
            if pid not in below and processes.belongs(pid, f"MSLAUNCH_RUN_DIR={self._order['run_dir']}"):
                others.append(pid)
        return others

    def warn(self) -> None:
        """Pass SIGUSR1 on to the ranks that have a handler for it; it would end the others."""
        others = self._started_by_others(processes.descendants(os.getpid()))
        for root in (os.getpid(), *others):
            processes.signal_all(processes.catching(root, signal.SIGUSR1), signal.SIGUSR1)

    def suspend_reader(self, is_stopped: bool) -> None:
        """Stop or continue the rank that reads the terminal with the launcher that was stopped or continued there."""
        for rank, (pid, _) in self.children.running_ranks.items():
            if self._stdin.is_terminal_of(rank):
                suspend(pid, is_stopped)

    def terminate(self) -> None:
        """Send SIGTERM to every process, each once. What has ended by now did so by itself."""
        self.stopping = True
        self.reap()
        self._terminated = True
        self._to_start.clear()
        if self.metrics is not None:
            self.metrics.stop_asking()
        left = self.everything()
        if self._nested is not None and left:
            self._nested.search(self.children.rank_pids)
        processes.signal_all(left, signal.SIGTERM)
        self.suspend_reader(False)  # a stopped process does not see SIGTERM

    def kill_scheduler(self) -> None:
        """The scheduler has nothing to save, and left alone it waits for heartbeats that will not come."""
        for child in self.children:
            if child.role == "scheduler" and child.running and child.pid is not None:
                processes.signal_all([child.pid], signal.SIGKILL)
