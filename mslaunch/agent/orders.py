"""What an agent does about each order of its launcher."""

from __future__ import annotations

import time

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.main import Agent
    from mslaunch.shared import messages

FINISH_WAIT = 0.5  # what msrun and mpirun get to end by themselves once all ranks have
LOST_GRACE = 1.0  # what ranks get to end in when the launcher is gone


def _probe(agent: Agent, order: messages.ProbeOrder) -> None:
    from mslaunch.shared import probe  # here and below: a local agent need not load what only remote ones use

    agent.output.event("facts", facts=probe.facts(order))


def _listen(agent: Agent, order: messages.ListenOrder) -> None:
    from mslaunch.shared.probe import OpenPort

    agent.listener = OpenPort(order["port"], order["choices"])
    agent.output.event("listening", port=agent.listener.port, why=agent.listener.why)


def _reach(agent: Agent, order: messages.ReachOrder) -> None:
    from mslaunch.shared.probe import reach

    agent.output.event("reached", why=reach(order["address"], order["port"], order["seconds"]))


def _close_port(agent: Agent, _: messages.OrderMessage) -> None:
    if agent.listener is not None:
        agent.listener.close()
        agent.listener = None


def _files(agent: Agent, order: messages.FilesOrder) -> None:
    from mslaunch.agent.file_pieces import Unpacker

    agent.unpacker = agent.unpacker or Unpacker()
    try:
        agent.unpacker.receive(order)
    except (OSError, EOFError, ValueError) as error:
        agent.output.event("files-failed", why=str(error))


def _run(agent: Agent, order: messages.RunOrder) -> None:
    _close_port(agent, order)
    ranks = [planned["rank"] for planned in order["processes"] if planned["rank"] is not None]
    agent.guard.protect(order["run_dir"], ranks)
    agent.launcher_lost_after = order["launcher_lost_after"]
    agent.answers = order["answers"]
    agent.activity = None
    agent.grace = order["grace"]
    agent.ranks.launch(order)


def _stop(agent: Agent, order: messages.StopOrder) -> None:
    now = time.monotonic()
    agent.begin_stop(now, now + order["grace"])


def _finish(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.end_scheduler()
    now = time.monotonic()
    agent.begin_stop(now + FINISH_WAIT, now + FINISH_WAIT + LOST_GRACE)


def _scheduler(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.start_scheduler()


def _joined(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.wake_joining()


def _stacks(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.take_stacks()


def _warn(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.warn()


def _ping(agent: Agent, _: messages.OrderMessage) -> None:
    if agent.answers:
        agent.ranks.pulse()
    if agent.activity is not None:
        agent.output.event("activity", **agent.activity.look(agent.ranks.running_ranks(), agent.clock.advance()))


def _activity(agent: Agent, _: messages.OrderMessage) -> None:
    """Tell with every ping from now on which ranks still print or compute."""
    from mslaunch.agent.activity import ActivityWatch

    agent.activity = agent.activity or ActivityWatch(agent.clock.advance())


def _pause(agent: Agent, _: messages.OrderMessage) -> None:
    """Ctrl-Z: the launcher will be silent until somebody continues it."""
    agent.launcher_paused = True
    agent.ranks.suspend_reader(True)


def _resume(agent: Agent, _: messages.OrderMessage) -> None:
    agent.launcher_paused = False
    agent.ranks.suspend_reader(False)


def _shown(agent: Agent, order: messages.ShownOrder) -> None:
    agent.output.shown(order["bytes"])


def _written(agent: Agent, order: messages.WrittenOrder) -> None:
    agent.output.window.written(order["bytes"])


def _collect(agent: Agent, order: messages.CollectOrder) -> None:
    from mslaunch.agent.file_pieces import Collector

    if agent.collector is None or order["share"] == 1.0:  # one that is on its way is not begun again
        agent.collector = Collector(order, agent.output, agent.collected)


def _bye(agent: Agent, _: messages.OrderMessage) -> None:
    agent.give_up("the launcher took its leave")


HANDLERS: dict[str, Callable[[Agent, Any], None]] = {
    "probe": _probe,
    "listen": _listen,
    "reach": _reach,
    "close-port": _close_port,
    "files": _files,
    "run": _run,
    "stop": _stop,
    "finish": _finish,
    "scheduler": _scheduler,
    "joined": _joined,
    "stacks": _stacks,
    "warn": _warn,
    "ping": _ping,
    "activity": _activity,
    "pause": _pause,
    "resume": _resume,
    "shown": _shown,
    "written": _written,
    "collect": _collect,
    "bye": _bye,
}
