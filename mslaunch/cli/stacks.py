"""`mslaunch stacks`: where the ranks of a running job stand, grouped by identical stack."""

from __future__ import annotations

import json

from mslaunch import api
from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.text import plain

app = common.new_app()


@app.command()
def stacks(
    run: options.Run = None,
    runs_dir: options.RunsDir = None,
    as_owner: options.AsOwner = False,
    as_json: common.Json = False,
) -> None:
    """Show where the ranks of a running job stand, without disturbing it."""
    found = find_run(run, runs_dir)
    if as_owner:
        api.become_owner(found)
    groups = found.stacks()
    if as_json:
        print(json.dumps(groups))
        return
    print("\n".join(map(plain, groups)))
    print(f"\nAll threads: {found.path}/rank_<R>/stack.txt")
