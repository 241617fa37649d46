"""`mslaunch stacks`: where the ranks of a running job stand, grouped by identical stack."""

from __future__ import annotations

import json

from mslaunch.cli.parsing import common
from mslaunch.text import plain

app = common.new_app()


@app.command()
def stacks(
    name: common.Run = None,
    runs_dir: common.RunsDir = None,
    as_owner: common.AsOwner = False,
    as_json: common.Json = False,
) -> None:
    """Show where the ranks of a running job stand, without disturbing it."""
    run = common.find_run(name, runs_dir, as_owner)
    groups = run.stacks()
    if as_json:
        print(json.dumps(groups))
        return
    print("\n".join(map(plain, groups)))
    print(f"\nAll threads: {run.path}/rank_<R>/stack.txt")
