"""`make bench` or `python -m bench [NAME …]`: every figure with its peer's, taken side by side."""

from __future__ import annotations

import sys

from bench import (
    browser,
    checkpoints,
    collect,
    diagnose,
    failure,
    hosts,
    join,
    metrics,
    planning,
    runs,
    scale,
    startup,
    tables,
    verdict,
    watch,
    weights,
)

CASES = {
    "two": startup.two_ranks,
    "many": startup.many_ranks,
    "real": startup.real_job,
    "help": startup.help_text,
    "memory": startup.memory,
    "plan": planning.ten_thousand_ranks,
    "tables": tables.ten_thousand_devices,
    "death": failure.death,
    "right": failure.right_rank,
    "flood": failure.flood,
    "verdict": verdict.many_fail,
    "diagnose": diagnose.large_folder,
    "reshard": checkpoints.reshard,
    "verify": checkpoints.verify_set,
    "import": weights.import_weights,
    "hosts": hosts.many_hosts,
    "most-hosts": hosts.most_hosts,
    "join": join.many_nodes,
    "elsewhere": hosts.death_elsewhere,
    "collect": collect.logs,
    "metrics": metrics.many_lines,
    "scale": scale.many_hosts,
    "status": scale.status_of_many,
    "watch": watch.watch_many,
    "ps": runs.thousand_runs,
    "report": browser.report_of_a_day,
    "ui": browser.much_to_show,
}


def main(names: list[str]) -> int:
    missed = 0
    for name in names or CASES:
        for row in CASES[name]():
            print(row.text(), flush=True)
            missed += not row.held
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
