"""What a host does before its ranks start: the commands of launch.setup, then the data of launch.sync."""

from __future__ import annotations

from mslaunch.agent.setup import SetUp
from mslaunch.agent.sync import Sync
from mslaunch.shared import processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable

    from mslaunch.agent.output import Output
    from mslaunch.shared import messages


class Preparation:
    """Runs one child after the other, and calls `start` with the environment of the ranks when none is left."""

    def __init__(
        self, output: Output, start: Callable[[dict[str, str]], None], is_stopping: Callable[[], bool]
    ) -> None:
        self.sync = Sync(output, self._fetch_ended)
        self._output = output
        self._start = start
        self._is_stopping = is_stopping
        self._order: messages.RunOrder
        self._setup: SetUp | None = None

    @property
    def is_running(self) -> bool:
        return self._setup is not None or self.sync.is_copying

    def begin(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        """Start with the set-up commands, where there are any."""
        self._order = order
        if not order["setup"]:
            self._fetch({**env, **order["env"]})
            return
        try:
            self._setup = SetUp(order, env)
        except OSError as error:
            start_failed(self._output, "launch.setup", None, error)

    def reaped(self, pid: int, status: int) -> None:
        """Notice the end of a child, if it is one of these."""
        if self._setup is not None and self._setup.pid == pid:
            setup, self._setup = self._setup, None
            self._setup_ended(setup, processes.outcome(status)["code"])
        self.sync.reaped(pid, status)

    def _setup_ended(self, setup: SetUp, code: int | None) -> None:
        env = setup.environment() if code == 0 else None
        if self._is_stopping():
            return
        if env is None:
            self._output.event("setup-failed", code=code, log=setup.log)
        else:
            self._fetch(env)

    def _fetch(self, env: dict[str, str]) -> None:
        try:
            is_fetching = self.sync.fetch(self._order, {**env, **self._order["secrets"]})
        except OSError as error:
            start_failed(self._output, "launch.sync", None, error)
        else:
            if not is_fetching:
                self._start(env)

    def _fetch_ended(self, why: str | None) -> None:
        if self._is_stopping():
            return
        if why is None:
            self._start(self.sync.env)
        else:
            self._output.event("sync-failed", why=why)


def start_failed(output: Output, role: str, rank: int | None, error: OSError) -> None:
    output.event("start-failed", role=role, rank=rank, why=error.strerror or str(error))
