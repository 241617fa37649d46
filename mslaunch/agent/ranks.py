"""The processes that an agent keeps: which were planned, which run, what they said and how they ended."""

from __future__ import annotations

import os
import signal
import time
from collections import deque

from mslaunch.agent.children import Child, DeadProcess, reap_all
from mslaunch.agent.kernel_kills import KernelKills
from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.agent.preparation import Preparation, start_failed
from mslaunch.agent.rank_logs import LogTimes, ShownLogs, put_aside
from mslaunch.agent.rank_messages import RankMessages, read_exit_file
from mslaunch.agent.stack_signal import StackTaking
from mslaunch.agent.standard_input import StandardInput, suspend
from mslaunch.shared import layout, processes, work_folder

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

    from mslaunch.agent.metrics.measuring import AttemptMetrics
    from mslaunch.agent.nested_launchers import NestedLaunchers
    from mslaunch.shared import messages
    from mslaunch.shared.device_locks import DeviceLocks

LOOK_EVERY = 1.0
START_SECONDS = 0.1  # how long ranks are started for before the loop looks at everything else again


class Ranks:
    """All processes of the run on this host."""

    def __init__(self, output: LauncherStream, message_path: str, stdin: StandardInput) -> None:
        self.output = output
        self.stdin = stdin
        self._reader: int | None = None
        self.message_path = message_path
        self.children: list[Child] = []
        self._by_pid: dict[int, Child] = {}
        self._speakers: dict[int | None, Child] = {}
        """Who sends messages: ranks by their number, the scheduler by None."""
        self.shown_logs = ShownLogs(output)
        self.log_times = LogTimes()
        self.metrics: AttemptMetrics | None = None
        self._nested: NestedLaunchers | None = None
        self._to_start: deque[Child] = deque()
        self._env: dict[str, str] = {}
        self._kernel_kills: KernelKills
        self._taking: StackTaking | None = None
        self._run_dir = ""
        self._order: messages.RunOrder
        self.preparation = Preparation(output, self._launch_with, lambda: self.stopping)
        self._locks: DeviceLocks | None = None
        self._looked = 0.0
        self.stopping = False
        self.asked = False
        self._messages = RankMessages()
        self._written = 0.0
        self._written_seen = time.monotonic()

    def launch(self, order: messages.RunOrder) -> None:
        """Start what the plan wants started now, after the set-up commands where there are any."""
        self._order, self._run_dir = order, order["run_dir"]
        self.stopping = self.asked = False
        self._reader = order["stdin"]
        if self._reader is None:
            self.stdin.close()
        self._written_seen = time.monotonic()
        self.shown_logs.clear()  # of a rank that could not be ended in the attempt before
        self.children = [Child(planned) for planned in order["processes"]]
        self._speakers = {child.rank: child for child in self.children if child.role in ("worker", "scheduler")}
        put_aside([child.planned["log"] for child in self.children], order["attempt"], self.output)
        logs = {child.rank: child.planned["log"] for child in self.children if child.rank is not None}
        self.log_times.begin(list(logs.values()))
        self.metrics = self._begin_metrics() if order["metrics"] is not None and logs else None
        self._nested = self._watch_launchers() if order["reports_launchers"] else None
        self._kernel_kills = KernelKills()
        if held := self._take_devices(order):
            self.output.event("devices-held", held=held)
            return
        env = {name: value for name, value in os.environ.items() if name not in order["unset"]}
        self.preparation.begin(order, env)

    def _begin_metrics(self) -> AttemptMetrics:
        from mslaunch.agent.metrics.measuring import AttemptMetrics

        return AttemptMetrics(
            self._order, self.output, lambda: {r: pid for r, (pid, _) in self.running_ranks().items()}
        )

    def _watch_launchers(self) -> NestedLaunchers:
        from mslaunch.agent.nested_launchers import NestedLaunchers

        return NestedLaunchers(self.output)

    def look_for_launchers(self, now: float) -> None:
        """Report a rank that starts a launcher."""
        if self._nested is not None and not self.stopping:
            self._nested.look(self._rank_pids(), now)

    def _rank_pids(self) -> dict[int, int]:
        """Return the rank of every pid that was one, those that have ended included."""
        return {child.pid: child.rank for child in self.children if child.pid and child.rank is not None}

    def _take_devices(self, order: messages.RunOrder) -> dict[int, str]:
        """Keep other runs off the devices of these ranks; return those that other runs keep us off."""
        stem = order["device_files"]
        if stem is None:
            return {}
        from mslaunch.shared.device_locks import DeviceLocks
        from mslaunch.shared.visible_devices import environment_of_ranks

        self._locks = self._locks or DeviceLocks()
        devices = {c.planned["device_id"] for c in self.children if c.rank is not None}
        wanted = sorted(device for device in devices if device is not None)
        held = self._locks.take(stem, wanted, environment_of_ranks(order), os.path.basename(self._run_dir))
        if self._locks.problem:
            text = f"its devices have no lock, so other runs may use them at the same time: {self._locks.problem}"
            self.output.event("agent-note", text=text)
        return held

    def _launch_with(self, env: dict[str, str]) -> None:
        order = self._order
        self._taking = None
        self._env = {**env, **order["secrets"], "MSLAUNCH_AGENT": self.message_path}
        self.preparation.sync.ranks_start(order, self._env)
        self._publish()
        for child in self.children:
            if child.rank is not None and child.rank in order["tail"]:
                self.shown_logs.add(child.rank, child.planned["log"], self._is_raw(child.rank))
        self._to_start = deque(child for child in self.children if child.planned["start"] == "now")
        self.start_more()

    def start_more(self) -> bool:
        """Start ranks for a moment; return whether some are still to be started."""
        until = time.monotonic() + START_SECONDS
        while self._to_start and time.monotonic() < until:
            self._start(self._to_start.popleft())
        return bool(self._to_start)

    def _publish(self) -> None:
        """Write down where this agent listens, for ranks that mpirun's own daemons start."""
        host = next((child.planned["host"] for child in self.children if child.by_script), None)
        if host is not None:
            path = os.path.join(self._run_dir, layout.agent_address(host))
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(self.message_path)
            except OSError:
                pass  # a full disk: ranks below this agent know it all the same

    def everything(self) -> list[int]:
        """Every process of the run here: all that descend from the agent, and ranks that others have started."""
        found = processes.descendants(os.getpid()) if processes.has_children() else []
        for pid in self._started_by_others(found):
            found += [pid, *processes.descendants(pid)]
        return found

    def _started_by_others(self, below: list[int]) -> list[int]:
        """Ranks that have told of themselves and do not descend from the agent."""
        mark = f"MSLAUNCH_RUN_DIR={self._run_dir}"
        told = [child.pid for child in self.children if child.by_script and child.running and child.pid]
        return [pid for pid in told if pid not in below and processes.belongs(pid, mark)]

    def warn(self) -> None:
        """Pass SIGUSR1 on to the ranks that have a handler for it; it would end the others."""
        others = self._started_by_others(processes.descendants(os.getpid()))
        for root in (os.getpid(), *others):
            processes.signal_all(processes.catching(root, signal.SIGUSR1), signal.SIGUSR1)

    def check_vanished(self, now: float) -> None:
        """Notice ranks that others have started and that have gone without a word."""
        for child in self.children:
            if child.by_script and child.running and child.pid and not os.path.exists(f"/proc/{child.pid}"):
                child.missed = child.missed or now
                if now - child.missed > LOOK_EVERY:
                    self._ended(child, *read_exit_file(child.planned["log"]))

    @property
    def running(self) -> bool:
        return self.preparation.is_running or bool(self._to_start) or any(child.running for child in self.children)

    def _start(self, child: Child) -> None:
        planned = child.planned
        env = {**self._env, **planned["env"]}
        stdin = None
        if child.rank is not None and child.rank == self._reader:
            self.stdin.lend()
            stdin = self.stdin.end
        try:
            child.pid = processes.start(planned["argv"], env, planned["cwd"], planned["log"], stdin=stdin)
            self._by_pid[child.pid] = child
        except OSError as error:
            start_failed(self.output, child.role, child.rank, error)
        else:
            self._started(child)

    def _started(self, child: Child) -> None:
        child.running = True
        self.output.event("started", role=child.role, rank=child.rank, pid=child.pid)

    def suspend_reader(self, is_stopped: bool) -> None:
        """Stop or continue the rank that reads the terminal with the launcher that was stopped or continued there."""
        for child in self.children:
            if child.rank is not None and child.rank == self._reader and child.running and self.stdin.is_terminal:
                suspend(child.pid or 0, is_stopped)

    def start_scheduler(self) -> None:
        for child in self.children:
            if child.planned["start"] == "on-import" and child.pid is None and not self.stopping:
                self._start(child)

    def look_for_mindspore(self, now: float) -> None:
        """Start the scheduler also for ranks that import MindSpore in a child or after exec, which tells nobody."""
        waiting = any(child.planned["start"] == "on-import" and child.pid is None for child in self.children)
        if not waiting or self.stopping or now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        below = processes.descendants(os.getpid())
        if any(processes.has_loaded(pid, "/mindspore/_c_expression") for pid in below):
            self.start_scheduler()

    def receive(self, data: bytes) -> None:
        """Take the messages of ranks and of their exit recorders."""
        for message in self._messages.feed(data):
            child = self._speakers.get(message["rank"])
            if child is not None:
                self._handle_message(child, message)

    def _handle_message(self, child: Child, message: messages.RankMessage) -> None:
        what = message["what"]
        if what in ("started", "ended"):
            if child.by_script:  # the agent itself knows of its own children
                self._handle_recorder(child, message)
            return
        if what == "metrics":
            if self.metrics is not None and child.rank is not None:
                self.metrics.receive(child.rank, message["rows"])
            return
        if what == "child-killed":
            child.add_dead(DeadProcess(message["child"], killed_by=message["signal"]))
            return
        if what == "import":
            self.start_scheduler()
        if what == "error" and self.metrics is not None and child.rank is not None:
            self.metrics.send_now(child.rank)
        child.raised = child.raised or what == "error"
        child.joining = what == "joining"
        self.output.event(what, rank=child.rank, time=message["time"], message=message["message"])
        if what == "joined":
            self.wake_joining()

    def _handle_recorder(self, child: Child, message: messages.RankMessage) -> None:
        if message["what"] == "started":
            child.pid = message["child"]
            self._started(child)
        else:
            how = {"code": message["code"], "signal": message["signal"], "crashed": message["crashed"]}
            self._ended(child, how, message["time"])

    def wake_joining(self) -> None:
        """Cut short the sleeps of ranks that still look for their peers: the first one is through, so all are there."""
        processes.signal_all([c.pid for c in self.children if c.joining and c.pid and c.running], signal.SIGURG)

    def reap(self) -> None:
        """Take leave of every child that has ended, orphans that came to us included."""
        ended = list(reap_all())
        for dead, _ in ended:  # what a rank has left behind comes here with it, and may be why it ended
            child = self._by_pid.get(dead.session)
            if child is not None and child.pid != dead.pid and not self.asked and not child.raised:
                child.add_dead(dead)
        for dead, status in ended:
            self.preparation.reaped(dead.pid, status)
            child = self._by_pid.pop(dead.pid, None)
            if child is not None and child.running:
                if child.role == "script":
                    self._close_script()
                self._ended(child, processes.outcome(status), time.time())

    def _close_script(self) -> None:
        """A script has ended: tell the end of ranks that have gone with it and could not tell it themselves."""
        for child in self.children:
            if child.by_script and child.running and not os.path.exists(f"/proc/{child.pid}"):
                how, when = read_exit_file(child.planned["log"])
                self._ended(child, how, when)

    def _ended(self, child: Child, how: dict[str, Any], when: float) -> None:
        if not child.running:
            return
        child.running = child.joining = False
        if child.rank is not None:
            self.shown_logs.finish(child.rank)
            self.log_times.finish(child.planned["log"])
            if self.metrics is not None:
                self.metrics.finish(child.rank)
            if child.rank == self._reader:
                self.stdin.restore()
        # mpirun ends the other ranks by itself when one has failed.
        how["asked"] = self.asked or (child.by_script and how["signal"] in (signal.SIGTERM, signal.SIGKILL))
        if how["code"] != 0 and (child.raised or not how["asked"] or how["signal"] == signal.SIGKILL):
            how.update(self._why(child, how["signal"]))
        self.output.event("exited", role=child.role, rank=child.rank, pid=child.pid, time=when, **how)

    def _why(self, child: Child, number: int | None) -> dict[str, Any]:
        """Find a process of a rank that was killed before it, and whether it was for lack of memory."""
        killed = self._kernel_kills.find(child.pid or 0, child.dead)
        if killed is not None and (killed or number == signal.SIGKILL):
            return {"out_of_memory": True, **({"child": killed, "child_signal": int(signal.SIGKILL)} if killed else {})}
        dead = child.last_dead(time.monotonic())
        why: dict[str, Any] = {"child": dead.words(), "child_signal": dead.signal} if dead else {}
        if signal.SIGKILL in (number, why.get("child_signal")):
            why["kernel"] = self._kernel_kills.describe()
        return why

    def pulse(self) -> None:
        """Tell for how long no rank has written anything, by a clock that nobody sets."""
        now = time.monotonic()
        written = self.log_times.look_at_all(now)
        if written != self._written:
            self._written, self._written_seen = written, now
        self.output.event("pulse", quiet=now - self._written_seen)

    def running_ranks(self) -> dict[int, tuple[int, str]]:
        """Return pid and log of every rank that runs."""
        running = [child for child in self.children if child.running and child.pid]
        return {c.rank: (c.pid, c.planned["log"]) for c in running if c.rank is not None and c.pid}

    def take_stacks(self) -> None:
        if self._taking is None:
            ranks = {rank: (pid, os.path.dirname(log)) for rank, (pid, log) in self.running_ranks().items()}
            self._taking = StackTaking(ranks, self._env)

    def finish_stacks(self) -> bool:
        """Send the stacks once all are there; return whether some are still on their way."""
        if self._taking is not None and self._taking.is_over():
            self.output.event("stacks", stacks=self._taking.read())
            self._taking = None
        return self._taking is not None

    def _is_raw(self, rank: int) -> bool:
        """A rank that a person answers is shown as it writes: a prompt has no newline."""
        return rank == self._reader and self.stdin.is_terminal

    def tell_outputs(self) -> None:
        """Leave what the ranks have written in their folders, now that none of them writes any more, and send it."""
        from mslaunch.shared.work_folder import scan, scan_code

        ranks = [child.rank for child in self.children if child.rank is not None]
        if not ranks:
            return
        for rank in ranks:
            work_folder.clear(self._run_dir, rank)
        workdir = self._order["workdir"]
        rows = [row for rank in ranks for row in scan(rank, self._run_dir, workdir)]
        rows += scan_code(self._run_dir, workdir)
        if rows:
            self.output.event("outputs", outputs=rows)

    def terminate(self) -> None:
        """Ask every process to end, each once. What has ended by now did so by itself."""
        self.stopping = True
        self.reap()
        self.asked = True
        self._to_start.clear()
        if self.metrics is not None:
            self.metrics.stop_asking()
        left = self.everything()
        if self._nested is not None and left:
            self._nested.search(self._rank_pids())
        processes.signal_all(left, signal.SIGTERM)
        self.suspend_reader(False)  # a stopped process does not see SIGTERM

    def end_scheduler(self) -> None:
        """The scheduler has nothing to save, and left alone it waits for heartbeats that will not come."""
        for child in self.children:
            if child.role == "scheduler" and child.running and child.pid is not None:
                processes.signal_all([child.pid], signal.SIGKILL)
