"""What is printed of errors: files that cannot be read, and names that would write to the terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.sharded import write_shard
from tests.conftest import Bench

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
VERBS = {
    "diff": ("ckpt", "diff", "a.safetensors", "closed"),
    "import": ("ckpt", "import", "closed", "--to", "x.ckpt"),
    "export": ("ckpt", "export", "closed", "--to", "x.safetensors"),
    "show": ("ckpt", "show", "closed"),
    "verify": ("ckpt", "verify", "closed"),
    "convert": ("ckpt", "convert", "closed", "-o", "new"),
    "diagnose": ("diagnose", "closed"),
}
HOSTILE = "w\x1b[2J\nmslaunch: all is well"


def run_closed(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command as one who may not read everything."""
    before = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    if before and shutil.which(before[0]) is None:
        pytest.skip("root may read everything here")
    command = [*before, bench.program, *args]
    return subprocess.run(command, cwd=bench.folder, env=bench.env, capture_output=True, text=True)


def write(path: Path, name: str = "w") -> Path:
    return write_shard(path, {name: ("Float32", (2,), bytes(8))})


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_folder_is_told(bench: Bench, verb: str) -> None:
    """With its name and exit code 3, without a traceback; 1 would mean that weights differ."""
    write(bench.folder / "a.safetensors")
    (bench.folder / "closed").mkdir(mode=0)
    done = run_closed(bench, *VERBS[verb])
    assert done.returncode == 3
    assert re.fullmatch(r"mslaunch: closed\S*: Permission denied\.\n", done.stderr)


def test_a_closed_file_is_told(bench: Bench) -> None:
    """Copying it again would not help."""
    write(bench.folder / "a.safetensors").chmod(0)
    done = run_closed(bench, "ckpt", "import", "a.safetensors", "--to", "x.ckpt")
    fix = "Ask its owner for the right to read it."
    assert (done.returncode, done.stderr) == (2, f"mslaunch: a.safetensors: it may not be read by you. {fix}\n")


def test_a_name_that_is_too_long_is_told(bench: Bench) -> None:
    """No traceback."""
    write(bench.folder / "a.safetensors")
    done = bench.mslaunch("ckpt", "diff", "a.safetensors", "n" * 300)
    assert (done.returncode, done.stderr) == (3, f"mslaunch: {'n' * 300}: File name too long.\n")


def test_a_name_in_a_file_writes_no_line_of_its_own(bench: Bench) -> None:
    """Nor does it reach the terminal as control characters."""
    write(bench.folder / "a.safetensors", HOSTILE)
    bench.write("rules.yaml", "rules: [{from: '(?s)(w.*)', to: 'x', transpose: [1, 0]}]")
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "x.ckpt", "--names", "rules.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: w\\x1b[2J\\nmslaunch: all is well: Float32 2 cannot be transposed")
    assert len(done.stderr.splitlines()) == 1


def test_a_name_in_a_list_of_findings_writes_no_line_of_its_own(bench: Bench) -> None:
    """Each finding is one line."""
    write(bench.folder / "a.safetensors", HOSTILE)
    write(bench.folder / "like.ckpt", "v")
    done = bench.mslaunch("ckpt", "import", "a.safetensors", "--to", "x.ckpt", "--like", "like.ckpt")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "mslaunch: mslaunch" not in done.stderr
    assert not any(line.startswith("mslaunch: all is well") for line in done.stderr.splitlines())
