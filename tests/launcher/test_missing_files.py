"""A file or module that a job looks for in vain is pointed at, where the project or an earlier run has it."""

from __future__ import annotations

from tests.conftest import Bench

SCRIPT = """
import os, sys
if sys.argv[1] == "write":
    os.makedirs("checkpoint", exist_ok=True)
    open("checkpoint/x.ckpt", "w").write("x")
elif sys.argv[1] == "read":
    open("checkpoint/x.ckpt")
elif sys.argv[1] == "load":
    import mindspore
    mindspore.load_checkpoint("checkpoint/x.ckpt")
elif sys.argv[1] == "elsewhere":
    open("words.txt")
else:
    import helpers.text
"""


def test_what_the_project_or_an_earlier_run_has_is_named(bench: Bench) -> None:
    """The newest run that wrote a file, and its path; a file of the same name; the folder that PYTHONPATH lacks."""
    bench.write("train.py", SCRIPT)
    bench.write("lib/helpers/__init__.py", "")
    bench.write("data/words.txt", "")
    for name in ("first", "second"):
        assert bench.mslaunch("train", "-n", "2", "--run-id", name, "train.py", "--", "write").returncode == 0
    written = f"Run second wrote it: {bench.runs}/second/rank_0/work/checkpoint/x.ckpt."
    expected = {
        "read": written,
        "load": written,
        "elsewhere": f"The project has a file of this name: {bench.folder}/data/words.txt.",
        "import": (
            f"The project has it: {bench.folder}/lib/helpers/__init__.py. Add its folder: "
            f"--env PYTHONPATH={bench.folder}/lib."
        ),
    }
    for what, words in expected.items():
        done = bench.mslaunch("train", "-n", "1", "train.py", "--", what)
        assert bench.record()["verdict"]["advice"].startswith(words), (what, done.stdout)
    done = bench.mslaunch("infer", "--ckpt", "checkpoint/x.ckpt")
    assert done.returncode == 2
    found = "mslaunch-runs/second/rank_0/work/checkpoint/x.ckpt"
    assert done.stderr == f"mslaunch: checkpoint/x.ckpt: no such checkpoint here. Run second wrote it: {found}.\n"
