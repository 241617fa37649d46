"""`mslaunch stacks`: where the ranks of a running job stand, grouped by identical stack."""

from __future__ import annotations

import json

from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.text import plain

app = common.new_app()


@app.command()
def stacks(
    name: options.Run = None,
    runs_dir: options.RunsDir = None,
    as_owner: options.AsOwner = False,
    as_json: common.Json = False,
) -> None:
    """Show where the ranks of a running job stand, without disturbing it."""
    run = find_run(name, runs_dir, as_owner)
    groups = run.stacks()
    if as_json:
        print(json.dumps(groups))
        return
    print("\n".join(map(plain, groups)))
    print(f"\nAll threads: {run.path}/rank_<R>/stack.txt")
