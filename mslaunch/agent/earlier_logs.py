"""Before a restart, what the attempt before has written is put aside: log.txt becomes log.0.txt."""

from __future__ import annotations

import os

from mslaunch.shared import layout

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from mslaunch.agent.output import Output


def put_aside(logs: list[str], attempt: int, output: Output) -> None:
    """Rename the logs, and the other files of an attempt beside them; the first attempt has nothing before it."""
    for path in logs if attempt else ():
        folder, log = os.path.split(path)
        for name in dict.fromkeys((log, *layout.ATTEMPT_FILES)):  # a script's log has a name of its own
            earlier = layout.earlier_name(name, attempt - 1)
            try:
                os.rename(os.path.join(folder, name), os.path.join(folder, earlier))
            except FileNotFoundError:
                pass
            except OSError as error:
                output.event("agent-note", text=f"output of the attempt before is not put aside: {error}")
                return
