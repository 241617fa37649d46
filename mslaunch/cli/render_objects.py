"""`mslaunch render --method kubernetes`: the objects of a job as one file for kubectl."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from mslaunch import api
from mslaunch.errors import RequestError

METHOD = "kubernetes"
_LEFT_OUT = "# Secret and ConfigMap are written with -o only.\n"


def render_objects(request: api.Request, output: str | None) -> None:
    """Write the objects, with code and secret; without a file, print those that hold neither."""
    plan = api.plan_request(request)
    if output is None:
        print(_LEFT_OUT + api.object_text(plan), end="")
        return
    target = Path(output)
    content = api.complete_objects(plan)
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RequestError(f"{target}: exists already. Give -o a new file.") from None
    except OSError as error:
        raise RequestError(f"{target}: cannot write the file: {error.strerror}.") from None
    with os.fdopen(file, "w") as opened:
        opened.write(content)
    print(shlex.join(("kubectl", "apply", "-f", str(target))))
