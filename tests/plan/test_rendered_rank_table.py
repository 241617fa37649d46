"""The script that `render --method rank-table` writes, run as it is."""

from __future__ import annotations

import subprocess

from tests.conftest import Bench


def test_ranks_that_end_one_after_the_other_leave_no_complaint_of_bash(bench: Bench) -> None:
    """Bash names every process that it has waited for before."""
    bench.write("t.py", "import os, time\ntime.sleep(0.2 * int(os.environ['RANK_ID']))\n")
    done = bench.mslaunch("render", "--method", "rank-table", "-n", "3", "-o", "out", "t.py")
    assert done.returncode == 0, done.stderr
    (script,) = (bench.folder / "out").rglob("rank_table*.sh")
    ran = subprocess.run(["bash", str(script)], cwd=bench.folder, env=bench.env, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
