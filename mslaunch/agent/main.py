"""The agent of one host: starts its ranks, reports what happens to them, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import select
import signal
import time

from mslaunch.agent.launcher_stream import LauncherStream
from mslaunch.agent.rank_messages import MessagePipe
from mslaunch.agent.ranks import Ranks
from mslaunch.agent.standard_input import StandardInput
from mslaunch.shared import guard, processes, wire
from mslaunch.shared.running_clock import RunningClock

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.activity import ActivityWatch
    from mslaunch.agent.file_pieces import RunFiles
    from mslaunch.shared import messages
    from mslaunch.shared.probe import OpenPort

POLL = 0.05  # how often growing logs and ending processes are looked at
STUCK_AFTER = 20.0  # a process that survives SIGKILL this long hangs in the kernel, in a driver or on NFS
SPARE_FILES = 4  # to read /proc, logs and messages with
PULSE_EVERY = 1.0  # while data is sent
FINISH_WAIT = 0.5  # what msrun and mpirun get to end by themselves once all ranks have
LOST_GRACE = 1.0  # what ranks get to end in when the launcher is gone


class StopDeadlines:
    """When to send SIGTERM, once, and from when on SIGKILL."""

    def __init__(self, terminate_at: float, kill_at: float) -> None:
        self.terminate_at = terminate_at
        self.kill_at = kill_at
        self.terminated = False


class Agent:
    """One loop over the launcher's stream, the ranks' messages and the signals of ended children."""

    def __init__(self, host: str, its_guard: guard.AgentGuard, stdin: int | None = None) -> None:
        self.host = host
        self.guard = its_guard
        self.output = LauncherStream(1, host)
        self.pipe = MessagePipe()
        self.ranks = Ranks(self.output, self.pipe, StandardInput(stdin))
        self.orders = wire.Decoder(wire.LONGEST_ORDER)
        self.clock = RunningClock()  # stands still while the agent does: the launcher's silence is measured by it
        self.last_sign = 0.0
        self.is_paused = False  # somebody has stopped the launcher with Ctrl-Z: its silence means nothing
        self.longest_silence: float | None = None  # nobody is missed before there is something to do
        self.deadlines: StopDeadlines | None = None
        self.is_connected = True
        self.is_done = False
        self.is_sending = False  # the data of launch.sync is sent
        self.pulse_at = 0.0
        self.answers_pings = False
        self.grace = LOST_GRACE
        self.activity: ActivityWatch | None = None
        self.port: OpenPort | None = None
        self.files: RunFiles | None = None
        self.wakeup = _catch_signals()
        os.set_blocking(0, False)
        processes.become_subreaper()
        for spare in [os.open(os.devnull, os.O_RDONLY) for _ in range(SPARE_FILES)]:
            os.close(spare)

    def run(self) -> None:
        self.output.event("hello", pid=os.getpid())
        readers = {0: self.receive_orders, self.pipe.end: self.ranks.receive, self.wakeup: self.handle_signals}
        more = False
        while not self.is_done:
            try:
                more = self.turn(readers, more)
            except OSError as error:  # whatever this machine lacks now, a dead agent would cost the job
                self.output.report_problem(error)
                more = False
                time.sleep(POLL)
        self.guard.dismiss()

    def turn(self, readers: dict[int, Callable[[], None]], more: bool) -> bool:
        """Wait a moment for something to happen, and do what has to be done; return whether not to wait next time."""
        poll = select.poll()
        for end in readers:
            if end != 0 or self.is_connected:
                poll.register(end, select.POLLIN)
        if self.output.is_waiting:
            poll.register(1, select.POLLOUT)
        for end, _ in poll.poll(self.milliseconds_to_wait(more)):
            if end in readers:
                readers[end]()
        more = self.ranks.start_more() | self.ranks.shown_logs.follow()
        if self.files is not None:
            more |= self.files.send_piece()
            self.output.flush()
        self.tick()
        self.output.flush()
        return more

    def milliseconds_to_wait(self, more: bool) -> float:
        is_taking_stacks = self.ranks.finish_stacks()
        if more:
            return 0
        is_growing = bool(self.ranks.shown_logs.followers or self.ranks.log_times.growing)
        is_collecting = self.files is not None and self.files.collector is not None
        if is_taking_stacks or is_growing or is_collecting or self.deadlines is not None:
            return POLL * 1000
        return 1000

    def receive_orders(self) -> None:
        """Take orders from the launcher; the end of the stream is the end of the launcher."""
        data = _read(0)
        if data is None:
            return
        if not data:
            self.give_up("the launcher's stream ended")
            return
        self.last_sign = self.clock.advance()
        for message in self.orders.feed(data):
            if message.get("to") in (self.host, "*"):
                self.dispatch(message)

    def dispatch(self, order: dict[str, Any]) -> None:
        """Obey one order by the method `on_NAME`; one that this version does not know is ignored."""
        handler = getattr(self, f"on_{order['do'].replace('-', '_')}", None)
        if handler is not None:
            try:
                handler(order)
            except OSError as error:
                self.output.report_problem(error)
                if order["do"] == "run":
                    self.output.event("start-failed", role="the job", rank=None, why=str(error))

    def handle_signals(self) -> None:
        numbers = _read(self.wakeup) or b""
        self.ranks.receive()  # what a rank reports before it ends comes before its end
        if signal.SIGTERM in numbers:  # Slurm sends it ahead of the end: the ranks get their time to save something
            self.give_up("the agent was told to end", self.grace, signal.SIGTERM)
        self.ranks.reap()

    def begin_stop(self, wait: float, grace: float) -> None:
        """Send SIGTERM after `wait` seconds and SIGKILL `grace` seconds later, or earlier where a stop has begun."""
        terminate_at = time.monotonic() + wait
        kill_at = terminate_at + grace
        if self.deadlines is None:
            self.deadlines = StopDeadlines(terminate_at, kill_at)
        self.deadlines.terminate_at = min(self.deadlines.terminate_at, terminate_at)
        self.deadlines.kill_at = min(self.deadlines.kill_at, kill_at)

    def give_up(self, why: str, grace: float = LOST_GRACE, number: int | None = None) -> None:
        """Nobody is there to give orders: end everything that is left, then this process."""
        if self.is_connected and self.ranks.running:
            self.output.event("abandoned", why=why, signal=number)
        self.ranks.stopping = True
        self.is_connected = False
        self.begin_stop(0.0, grace)

    def tick(self) -> None:
        now = time.monotonic()
        silence, limit = self.clock.advance() - self.last_sign, self.longest_silence
        if limit is not None and silence > limit and not self.is_paused and self.is_connected:
            self.give_up(f"the launcher was silent for {limit:g} s (launch.launcher_lost_after)")
        self.ranks.look(now)
        if self.is_sending and self.deadlines is None:
            self.watch_sending(now)
        if self.deadlines is not None:
            self.stop(self.deadlines, now)

    def stop(self, deadlines: StopDeadlines, now: float) -> None:
        """Terminate everything, then kill it, then report that nothing is left."""
        if not deadlines.terminated and now >= deadlines.terminate_at:
            deadlines.terminated = True
            self.ranks.terminate()
        left = self.ranks.everything()
        self.ranks.receive()  # only now: what has ended by this time is known to have ended
        self.ranks.reap()
        if now >= deadlines.kill_at + STUCK_AFTER:
            if left:
                self.output.event("stuck", processes=[processes.describe(pid) for pid in left])
            self.finish_stop()
        elif not left and not processes.has_children():
            self.finish_stop()
        elif now >= deadlines.kill_at:
            processes.signal_all(left, signal.SIGKILL)

    def finish_stop(self) -> None:
        """Report that nothing is left, or nothing that can be ended, once the data of launch.sync is sent."""
        self.deadlines = None
        self.is_sending = self.is_connected and self.ranks.preparation.send()
        if not self.is_sending:
            self.ranks.report_outputs()
            self.output.event("idle")
            self.is_done = not self.is_connected

    def watch_sending(self, now: float) -> None:
        """Show the launcher that this agent is alive while data is sent; end what is left once it is."""
        if not self.ranks.preparation.is_running:
            self.begin_stop(0.0, LOST_GRACE)  # what the copying process may have left
        elif now >= self.pulse_at:
            self.pulse_at = now + PULSE_EVERY
            self.ranks.pulse()

    # Orders of the launcher. What only agents of other hosts use is imported here: a local one need not load it.

    def on_probe(self, order: messages.ProbeOrder) -> None:
        from mslaunch.shared import probe

        self.output.event("facts", facts=probe.facts(order))

    def on_listen(self, order: messages.Message) -> None:
        """Hold a port open: this one, or the first of the choices that is free."""
        from mslaunch.shared.probe import OpenPort

        self.port = OpenPort(order["port"], order["choices"])
        self.output.event("listening", port=self.port.number, why=self.port.why)

    def on_reach(self, order: messages.Message) -> None:
        from mslaunch.shared.probe import reach

        self.output.event("reached", why=reach(order["address"], order["port"], order["seconds"]))

    def on_close_port(self, _: Any) -> None:
        if self.port is not None:
            self.port.close()
            self.port = None

    def on_files(self, order: messages.FilesOrder) -> None:
        self.run_files().receive(order)

    def on_collect(self, order: messages.CollectOrder) -> None:
        self.run_files().collect(order)

    def run_files(self) -> RunFiles:
        from mslaunch.agent.file_pieces import RunFiles

        self.files = self.files or RunFiles(self.output)
        return self.files

    def on_run(self, order: messages.RunOrder) -> None:
        self.on_close_port(order)
        ranks = [planned["rank"] for planned in order["processes"] if planned["rank"] is not None]
        self.guard.protect(order["run_dir"], ranks)
        self.longest_silence = order["launcher_lost_after"]
        self.answers_pings = order["answers"]
        self.activity = None
        self.grace = order["grace"]
        self.ranks.launch(order)

    def on_stop(self, order: messages.Message) -> None:
        self.begin_stop(0.0, order["grace"])

    def on_finish(self, _: Any) -> None:
        self.ranks.kill_scheduler()
        self.begin_stop(FINISH_WAIT, LOST_GRACE)

    def on_scheduler(self, _: Any) -> None:
        self.ranks.start_scheduler()

    def on_joined(self, _: Any) -> None:
        self.ranks.wake_joining()

    def on_stacks(self, _: Any) -> None:
        self.ranks.take_stacks()

    def on_warn(self, _: Any) -> None:
        self.ranks.warn()

    def on_ping(self, _: Any) -> None:
        if self.answers_pings:
            self.ranks.pulse()
        if self.activity is not None:
            seconds = self.activity.look(self.ranks.children.running_ranks, self.clock.advance())
            self.output.event("activity", **seconds)

    def on_activity(self, _: Any) -> None:
        """Report with every ping from now on which ranks still print or compute."""
        from mslaunch.agent.activity import ActivityWatch

        self.activity = self.activity or ActivityWatch(self.clock.advance())

    def on_pause(self, _: Any) -> None:
        """Ctrl-Z: the launcher will be silent until somebody continues it."""
        self.is_paused = True
        self.ranks.suspend_reader(True)

    def on_resume(self, _: Any) -> None:
        self.is_paused = False
        self.ranks.suspend_reader(False)

    def on_shown(self, order: messages.Message) -> None:
        self.output.unshown -= order["bytes"]

    def on_written(self, order: messages.Message) -> None:
        self.output.window.written(order["bytes"])

    def on_bye(self, _: Any) -> None:
        self.give_up("the launcher took its leave")


def _catch_signals() -> int:
    """Have SIGCHLD and SIGTERM wake the loop; return the pipe that their numbers come through."""
    wakeup, wake = os.pipe()
    for end in (wakeup, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return wakeup


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
    except OSError as error:  # no more processes or files: reported, since users would have to read a traceback
        output = LauncherStream(1, host)
        output.start_failed("agent", None, error)
        output.flush()
        os._exit(1)
    agent.run()
    os._exit(0)
