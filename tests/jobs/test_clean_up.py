"""What happens after a script has ended well: MindSpore may crash while it is taken apart."""

from __future__ import annotations

import pytest

from tests.conftest import Bench

CRASHES_AT_EXIT = "import atexit, os\natexit.register(lambda: os.kill(os.getpid(), 11))\n"


@pytest.mark.parametrize("method", ["dynamic", "mpirun", "rank-table"])
def test_a_crash_in_the_clean_up_is_told_and_does_not_fail_the_job(
    bench: Bench, method: str, request: pytest.FixtureRequest
) -> None:
    """It can break nothing more. A script that had ended badly has failed all the same."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write("train.py", CRASHES_AT_EXIT)
    done = bench.mslaunch("train", "-n", "2", "--method", method)
    assert done.returncode == 0, done.stdout
    assert "rank 1 was ended by SIGSEGV while MindSpore was taken apart" in done.stdout
    bench.write("train.py", CRASHES_AT_EXIT + "raise SystemExit(3)\n")
    assert bench.mslaunch("train", "-n", "2", "--method", method).returncode == 139
