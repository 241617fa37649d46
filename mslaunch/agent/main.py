"""The agent of one host: starts its ranks, reports what happens to them, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import select
import signal
import time

from mslaunch.agent import orders
from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.agent.ranks import Ranks
from mslaunch.agent.standard_input import StandardInput
from mslaunch.shared import guard, processes, wire
from mslaunch.shared.running_clock import RunningClock

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.activity import ActivityWatch
    from mslaunch.agent.file_pieces import Collector, Unpacker
    from mslaunch.shared.probe import OpenPort

POLL = 0.05  # how often growing logs and ending processes are looked at
STUCK_AFTER = 20.0  # a process that survives SIGKILL this long hangs in the kernel, in a driver or on NFS
SPARE_FILES = 4  # to read /proc, logs and messages with
PULSE_EVERY = 1.0  # while data is sent


class Ladder:
    """The way down: asked to end at one time, ended at another, each once."""

    def __init__(self, ask_at: float, kill_at: float) -> None:
        self.ask_at = ask_at
        self.kill_at = kill_at
        self.asked = False


class Agent:
    """One loop over the launcher's stream, the ranks' messages and the signals of ended children."""

    def __init__(self, host: str, its_guard: guard.AgentGuard, stdin: int | None = None) -> None:
        self.host = host
        self.guard = its_guard
        self.output = LauncherStream(1, host)
        self.commands = wire.Decoder(wire.LONGEST_ORDER)
        self.messages, message_end = os.pipe()
        self.wakeup, wake = os.pipe()
        for end in (0, self.messages, self.wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        processes.become_subreaper()
        self.ranks = Ranks(self.output, f"/proc/{os.getpid()}/fd/{message_end}", StandardInput(stdin))
        self.ladder: Ladder | None = None
        self.sending = False
        self.pulse_at = 0.0
        self.connected = True
        self.clock = RunningClock()
        self.last_heard = 0.0
        self.launcher_paused = False
        self.launcher_lost_after: float | None = None  # nobody is missed before there is something to do
        self.answers = False
        self.activity: ActivityWatch | None = None
        self.grace = orders.LOST_GRACE
        self.listener: OpenPort | None = None
        self.unpacker: Unpacker | None = None
        self.collector: Collector | None = None
        self.collected: dict[str, tuple[int, int]] = {}
        self.done = False
        self.noted: set[str] = set()
        for spare in [os.open(os.devnull, os.O_RDONLY) for _ in range(SPARE_FILES)]:
            os.close(spare)

    def run(self) -> None:
        self.output.open()
        self.output.event("hello", pid=os.getpid())
        readers = {0: self.receive_orders, self.messages: self.receive_messages, self.wakeup: self.handle_signals}
        more = False
        while not self.done:
            try:
                more = self.turn(readers, more)
            except OSError as error:  # whatever this machine lacks now, a dead agent would cost the job
                self.note(error)
                more = False
                time.sleep(POLL)
        self.guard.dismiss()

    def turn(self, readers: dict[int, Callable[[], None]], more: bool) -> bool:
        """Wait a moment for something to happen, and do what has to be done; return whether not to wait next time."""
        interest = [(end, select.POLLIN) for end in readers if end or self.connected]
        if self.output.is_waiting:
            interest.append((1, select.POLLOUT))
        poll = select.poll()
        for end, events in interest:
            poll.register(end, events)
        taking = self.ranks.finish_stacks()
        growing = bool(self.ranks.shown_logs) or self.ranks.log_times.is_growing
        busy = taking or growing or self.ladder is not None or self.collector is not None
        for end, _ in poll.poll(0 if more else POLL * 1000 if busy else 1000):
            if end in readers:
                readers[end]()
        more = self.ranks.start_more() | self.ranks.shown_logs.follow() | self.collect()
        self.tick()
        self.output.flush()
        return more

    def note(self, error: OSError) -> None:
        """Have a person told what went wrong here, each thing once."""
        text = f"the agent could not do all that it should: {error}"
        if text not in self.noted:
            self.noted.add(text)
            self.output.event("agent-note", text=text)

    def receive_orders(self) -> None:
        """Take orders from the launcher; the end of the stream is the end of the launcher."""
        data = _read(0)
        if data is None:
            return
        if not data:
            self.give_up("the launcher's stream ended")
            return
        self.last_heard = self.clock.advance()
        for message in self.commands.feed(data):
            if message.get("to") in (self.host, "*"):
                self.dispatch(message)

    def dispatch(self, order: dict[str, Any]) -> None:
        """Obey one order; one that this version does not know is ignored."""
        handler = orders.HANDLERS.get(order["do"])
        if handler is not None:
            try:
                handler(self, order)
            except OSError as error:
                self.note(error)
                if order["do"] == "run":
                    self.output.event("start-failed", role="the job", rank=None, why=str(error))

    def collect(self) -> bool:
        """Send a piece of the files that are collected; return whether there may be another one at once."""
        if self.collector is None:
            return False
        if self.collector.step():
            self.collector = None
        self.output.flush()
        return self.collector is not None and self.collector.is_ready

    def receive_messages(self) -> None:
        self.ranks.receive(_read(self.messages) or b"")

    def handle_signals(self) -> None:
        numbers = _read(self.wakeup) or b""
        self.receive_messages()  # what a rank said before it ended comes before its end
        if signal.SIGTERM in numbers:  # Slurm sends it ahead of the end: the ranks get their time to save something
            self.give_up("the agent was told to end", self.grace, signal.SIGTERM)
        self.ranks.reap()

    def begin_stop(self, ask_at: float, kill_at: float) -> None:
        """Begin the ladder, or hurry on one that has begun."""
        if self.ladder is None:
            self.ladder = Ladder(ask_at, kill_at)
        else:
            self.ladder.ask_at = min(self.ladder.ask_at, ask_at)
            self.ladder.kill_at = min(self.ladder.kill_at, kill_at)

    def give_up(self, why: str, grace: float = orders.LOST_GRACE, number: int | None = None) -> None:
        """Nobody is there to give orders: end everything that is left, then this process."""
        if self.connected and self.ranks.running:
            self.output.event("abandoned", why=why, signal=number)
        self.ranks.stopping = True  # nothing is started any more
        self.connected = False
        now = time.monotonic()
        self.begin_stop(now, now + grace)

    def tick(self) -> None:
        now = time.monotonic()
        silence, limit = self.clock.advance() - self.last_heard, self.launcher_lost_after
        if limit is not None and silence > limit and self.connected and not self.launcher_paused:
            self.give_up(f"the launcher was silent for {limit:g} s (launch.launcher_lost_after)")
        self.ranks.look_for_mindspore(now)
        self.ranks.check_vanished(now)
        self.ranks.look_for_launchers(now)
        self.ranks.log_times.look(now)
        if self.ranks.metrics is not None:
            self.ranks.metrics.look(now)
        if self.sending and self.ladder is None:
            self.watch_sending(now)
        if self.ladder is not None:
            self.descend(self.ladder, now)

    def descend(self, ladder: Ladder, now: float) -> None:
        """Ask everything to end, then end it, then say that nothing is left."""
        if not ladder.asked and now >= ladder.ask_at:
            ladder.asked = True
            self.ranks.terminate()
        left = self.ranks.everything()
        self.receive_messages()  # only now: what has ended by this time is known to have ended
        self.ranks.reap()
        if now >= ladder.kill_at + STUCK_AFTER:
            if left:
                self.output.event("stuck", processes=[processes.describe(pid) for pid in left])
            self.end_ladder()
        elif not left and not processes.has_children():
            self.end_ladder()
        elif now >= ladder.kill_at:
            processes.signal_all(left, signal.SIGKILL)

    def end_ladder(self) -> None:
        """Say that nothing is left, or nothing that can be ended, once the data of launch.sync is sent."""
        self.ladder = None
        self.sending = self.connected and self.ranks.preparation.sync.send()
        if not self.sending:
            self.tell_idle()

    def watch_sending(self, now: float) -> None:
        """Have the launcher know that this agent is alive while data is sent; end once it is."""
        if not self.ranks.preparation.sync.is_copying:
            self.begin_stop(now, now + orders.LOST_GRACE)  # what the copying process may have left
        elif now >= self.pulse_at:
            self.pulse_at = now + PULSE_EVERY
            self.ranks.pulse()

    def tell_idle(self) -> None:
        self.ranks.tell_outputs()
        self.output.event("idle")
        self.done = not self.connected


def _read(end: int) -> bytes | None:
    """Return what has come, nothing when the stream has ended or broken, None when there is nothing yet."""
    try:
        return os.read(end, 65536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def remote_main(host: str) -> None:
    """Run the agent on another host: whoever started this process there waits for its end, and not for the guard's."""
    try:
        guard.stay_behind()
    except OSError:  # no more processes: what comes next reports it
        pass
    main(host)


def main(host: str, stdin: str = "") -> None:
    """Run the agent, without the cost of collecting its modules or taking the interpreter apart.

    `stdin` is the number of an open file: the launcher's standard input.
    """
    end = int(stdin) if stdin else None
    gc.freeze()
    gc.enable()
    try:
        agent = Agent(host, guard.start(end), end)
    except OSError as error:  # no more processes or files: told, since a traceback would be the user's to read
        output = LauncherStream(1, host)
        output.open()
        output.event("start-failed", role="agent", rank=None, why=error.strerror or str(error))
        output.flush()
        os._exit(1)
    agent.run()
    os._exit(0)
