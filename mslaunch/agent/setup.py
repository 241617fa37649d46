"""launch.setup: shell commands that run once per host, and whose environment the ranks get."""

from __future__ import annotations

import os

from mslaunch.shared import layout, processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from mslaunch.shared import messages

_FIXED = ("MSLAUNCH_", "MS_SCHED", "MS_WORKER", "MS_ROLE", "MS_NODE", "RANK_")


class SetUp:
    """One run of the set-up commands, a child like any other: it can be stopped, and dies with the agent."""

    def __init__(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        self.log = os.path.join(order["run_dir"], layout.SETUP_LOG)
        self._result = os.memfd_create("environment")  # not a file: an environment may hold secrets
        script = f"{{ {order['setup']}\n}} >&2 </dev/null && env -0 >&{self._result}"
        argv = ["bash", "-c", script]
        given = {**env, **order["env"], **order["secrets"]}
        try:
            self.pid = processes.start(argv, given, order["run_dir"], self.log, keep=self._result)
        except OSError:
            os.close(self._result)
            raise
        self._given = order["env"]

    def environment(self) -> dict[str, str] | None:
        """Return what the commands left, or None where they left before they could tell (`exit 0`).

        What the plan gives every rank may be changed here (PYTHONPATH, say), except for what makes a rank a rank.
        """
        with os.fdopen(self._result, "rb") as file:
            file.seek(0)
            text = os.fsdecode(file.read())
        pairs = (item.partition("=") for item in text.split("\0") if item)
        left = {name: value for name, _, value in pairs}
        return (
            {**left, **{name: value for name, value in self._given.items() if name.startswith(_FIXED)}}
            if left
            else None
        )
