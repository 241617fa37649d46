"""What an agent does for each order of its launcher."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.file_pieces import RunFiles
    from mslaunch.agent.main import Agent
    from mslaunch.shared import messages

FINISH_WAIT = 0.5  # what msrun and mpirun get to end by themselves once all ranks have
LOST_GRACE = 1.0  # what ranks get to end in when the launcher is gone


HANDLERS: dict[str, Callable[[Agent, Any], None]] = {}


def _obeys(name: str) -> Callable[[Callable[[Agent, Any], None]], Callable[[Agent, Any], None]]:
    """Enter the handler of an order into HANDLERS."""

    def enter(handler: Callable[[Agent, Any], None]) -> Callable[[Agent, Any], None]:
        HANDLERS[name] = handler
        return handler

    return enter


@_obeys("probe")
def _probe(agent: Agent, order: messages.ProbeOrder) -> None:
    from mslaunch.shared import probe  # here and below: a local agent need not load what only remote ones use

    agent.output.event("facts", facts=probe.facts(order))


@_obeys("listen")
def _listen(agent: Agent, order: messages.ListenOrder) -> None:
    from mslaunch.shared.probe import OpenPort

    agent.port = OpenPort(order["port"], order["choices"])
    agent.output.event("listening", port=agent.port.number, why=agent.port.why)


@_obeys("reach")
def _reach(agent: Agent, order: messages.ReachOrder) -> None:
    from mslaunch.shared.probe import reach

    agent.output.event("reached", why=reach(order["address"], order["port"], order["seconds"]))


@_obeys("close-port")
def _close_port(agent: Agent, _: messages.OrderMessage) -> None:
    if agent.port is not None:
        agent.port.close()
        agent.port = None


def _run_files(agent: Agent) -> RunFiles:
    from mslaunch.agent.file_pieces import RunFiles

    agent.files = agent.files or RunFiles(agent.output)
    return agent.files


@_obeys("files")
def _files(agent: Agent, order: messages.FilesOrder) -> None:
    _run_files(agent).receive(order)


@_obeys("collect")
def _collect(agent: Agent, order: messages.CollectOrder) -> None:
    _run_files(agent).collect(order)


@_obeys("run")
def _run(agent: Agent, order: messages.RunOrder) -> None:
    _close_port(agent, order)
    ranks = [planned["rank"] for planned in order["processes"] if planned["rank"] is not None]
    agent.guard.protect(order["run_dir"], ranks)
    agent.silence.limit = order["launcher_lost_after"]
    agent.answers_pings = order["answers"]
    agent.activity = None
    agent.grace = order["grace"]
    agent.ranks.launch(order)


@_obeys("stop")
def _stop(agent: Agent, order: messages.StopOrder) -> None:
    agent.begin_stop(0.0, order["grace"])


@_obeys("finish")
def _finish(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.kill_scheduler()
    agent.begin_stop(FINISH_WAIT, LOST_GRACE)


@_obeys("scheduler")
def _scheduler(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.start_scheduler()


@_obeys("joined")
def _joined(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.wake_joining()


@_obeys("stacks")
def _stacks(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.take_stacks()


@_obeys("warn")
def _warn(agent: Agent, _: messages.OrderMessage) -> None:
    agent.ranks.warn()


@_obeys("ping")
def _ping(agent: Agent, _: messages.OrderMessage) -> None:
    if agent.answers_pings:
        agent.ranks.pulse()
    if agent.activity is not None:
        seconds = agent.activity.look(agent.ranks.children.running_ranks, agent.silence.clock.advance())
        agent.output.event("activity", **seconds)


@_obeys("activity")
def _activity(agent: Agent, _: messages.OrderMessage) -> None:
    """Report with every ping from now on which ranks still print or compute."""
    from mslaunch.agent.activity import ActivityWatch

    agent.activity = agent.activity or ActivityWatch(agent.silence.clock.advance())


@_obeys("pause")
def _pause(agent: Agent, _: messages.OrderMessage) -> None:
    """Ctrl-Z: the launcher will be silent until somebody continues it."""
    agent.silence.is_paused = True
    agent.ranks.suspend_reader(True)


@_obeys("resume")
def _resume(agent: Agent, _: messages.OrderMessage) -> None:
    agent.silence.is_paused = False
    agent.ranks.suspend_reader(False)


@_obeys("shown")
def _shown(agent: Agent, order: messages.ShownOrder) -> None:
    agent.output.shown(order["bytes"])


@_obeys("written")
def _written(agent: Agent, order: messages.WrittenOrder) -> None:
    agent.output.window.written(order["bytes"])


@_obeys("bye")
def _bye(agent: Agent, _: messages.OrderMessage) -> None:
    agent.give_up("the launcher took its leave")
