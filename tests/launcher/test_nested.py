"""A program that is a launcher itself is never started once per rank, and one that a rank starts is reported."""

from __future__ import annotations

import re
import shlex

import pytest

from mslaunch.launcher.nested import find_nested
from mslaunch.plan.program import Program
from tests.conftest import Bench

STORED = """#!/bin/bash
# Usage: bash run.sh "train.py --config a.yaml" 8
if [ $# == 2 ]
then
  NUM=$2
fi
CMD="msrun --worker_num=$NUM \\
  --local_worker_num=$NUM"
ORDER="$CMD $1"
echo "it's on its way: $ORDER"
eval $ORDER
"""
LOOP = """#!/bin/bash
export RANK_SIZE=8
for ((i = 0; i < ${RANK_SIZE}; i++))
do
    export DEVICE_ID=$i
    export RANK_ID=$((rank_start + i))
    rm -rf ./train_parallel$i
    if [ $# == 1 ]
    then
        taskset -c $i python train.py --data=$1 \\
            --device_num=$RANK_SIZE &> log &
    fi
done
"""
SCRIPTS = {
    "scripts/stored.sh": STORED,
    "scripts/loop.sh": LOOP,
    "scripts/mpi.sh": "cd ..\nnohup mpirun --allow-run-as-root -n $1 python train.py > log 2>&1 &\n",
    "scripts/plain.sh": "if true; then env A=1 msrun --worker_num=4 train.py --lr 1; fi\n",
    "scripts/outer.sh": 'cd "$(dirname $0)"\nbash scripts/loop.sh /data\n',
    "train.py": "",
    # What starts no ranks.
    "one.sh": "export DEVICE_ID=$1\npython train.py --config=a &> log &\n",
    "helper.sh": "mpirun -n 1 hostname\npython train.py\n",
    "talk.sh": "# mpirun -n 8 python train.py\necho 'Usage: msrun; torchrun train.py'\nwhich mpirun\ncommand -v srun\n",
    "files.sh": "for f in *.zip\ndo\n  unzip $f &\ndone\nwait\n",
    "one_by_one.sh": "for i in 0 1\ndo\n  DEVICE_ID=$i python eval.py\ndone\n",
}
LAUNCHERS = {
    "msrun --worker_num=2 train.py": "mslaunch msrun --worker_num=2 train.py",
    "/opt/bin/torchrun --nproc-per-node 2 train.py": "mslaunch torchrun --nproc-per-node 2 train.py",
    "mpirun -x A --allow-run-as-root -np 4 python t.py": "mslaunch train --method mpirun -n 4 python t.py",
    "mpiexec ./a.out": "mslaunch train --method mpirun -n 2 PROGRAM",
    "srun -N 2 python train.py": "mslaunch train --transport slurm -n 2 python train.py",
    "accelerate launch --num_processes 8 train.py": "mslaunch train -n 8 train.py",
    "mslaunch train -n 4 train.py": "mslaunch train -n 4 train.py",
    "nohup env A=b msrun train.py": "mslaunch msrun train.py",
    "-m torch.distributed.run --nproc_per_node=2 train.py": "mslaunch torchrun --nproc_per_node=2 train.py",
    "-m mindspore.parallel.cluster.run train.py": "mslaunch msrun train.py",
    "bash -c 'msrun --worker_num=2 train.py'": "mslaunch msrun --worker_num=2 train.py",
    "bash scripts/stored.sh 'train.py --config a.yaml' 8": "mslaunch train -n 2 train.py --config a.yaml",
    "bash -x scripts/stored.sh 'python train.py'": "mslaunch train -n 2 train.py",
    "bash scripts/loop.sh /data": "mslaunch train -n 2 train.py ARGUMENTS",
    "scripts/mpi.sh 8": "mslaunch train -n 2 train.py ARGUMENTS",
    "bash scripts/plain.sh": "mslaunch msrun --worker_num=4 train.py --lr 1",
    "sh scripts/outer.sh": "mslaunch train -n 2 train.py ARGUMENTS",
}
OTHERS = (
    *("bash one.sh", "bash helper.sh", "bash talk.sh", "bash files.sh", "./one_by_one.sh", "bash missing.sh"),
    *("pytest -q msrun", "echo msrun", "mslaunch ps", "accelerate env", "-m pkg.msrun", "bash -c 'echo msrun'"),
)


def as_program(line: str) -> Program:
    words = shlex.split(line)
    return (
        Program("module", words[1], tuple(words[2:]))
        if words[0] == "-m"
        else Program("executable", words[0], tuple(words[1:]))
    )


def test_launchers_are_told_from_other_programs() -> None:
    """By name, behind `env` and the like, by module, and by the text of a shell script; each has a line instead."""
    found = {line: find_nested(as_program(line), SCRIPTS.get) for line in (*LAUNCHERS, *OTHERS)}
    assert {line: nested.instead(2) for line, nested in found.items() if nested} == LAUNCHERS


@pytest.mark.parametrize("verb", [("train",), ("render", "--method", "msrun")])
def test_a_script_that_launches_is_not_started_once_per_rank(bench: Bench, verb: tuple[str, ...]) -> None:
    """The request is refused, with the line of the script and the line to type instead."""
    bench.write("scripts/run.sh", LOOP)
    bench.write("train.py", "")
    done = bench.mslaunch(*verb, "-n", "2", "bash", "scripts/run.sh", "/data")
    assert done.returncode == 2
    assert "scripts/run.sh:4 starts a process per device" in done.stderr
    assert "`mslaunch train -n 2 train.py ARGUMENTS`" in done.stderr
    assert not bench.runs.exists()


def test_a_script_that_launches_may_be_started_once(bench: Bench) -> None:
    """One process that is a launcher is what -n 1 asks for; a note says that its processes are not ranks."""
    bench.write("run.sh", "mpirun -n 2 python train.py\n")
    done = bench.mslaunch("train", "-n", "1", "--dry-run", "bash", "run.sh")
    assert done.returncode == 0, done.stderr
    assert "run.sh:1 starts mpirun, and is started once" in done.stdout
    allowed = bench.mslaunch("train", "-n", "2", "--dry-run", "--allow-launcher", "bash", "run.sh")
    assert allowed.returncode == 0, allowed.stderr
    assert "starts mpirun" not in allowed.stdout


def test_a_launcher_that_is_not_installed_is_refused_with_the_line_to_type(bench: Bench) -> None:
    """`mslaunch torchrun` needs no torchrun."""
    bench.write("train.py", "")
    for words in (("horovodrun", "-np", "2", "python", "train.py"), ("-m", "torch.distributed.run", "train.py")):
        done = bench.mslaunch("train", "-n", "2", *words)
        assert done.returncode == 2
        assert "mslaunch takes its place. Type `mslaunch " in done.stderr


def test_a_rank_that_starts_ranks_of_its_own_is_reported(bench: Bench) -> None:
    """Also where it does not wait for them: the run succeeds by its exit code, and a warning says what it did."""
    loop = "for i in 0 1; do RANK_SIZE=2 RANK_ID=$i sleep 37 & done"
    bench.write("train.py", f"import os\nos.system({loop!r})\n")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 0, done.stderr
    end = done.stdout.partition(" succeeded after ")[2]
    assert re.search(r"warning: rank [01] on localhost starts ranks itself: sleep 37\. Each of the 2 ranks may", end)
    assert [one["kind"] for one in bench.record()["warnings"]] == ["nested launcher"]
    assert "nested launcher" in bench.mslaunch("ps").stdout


def test_a_rank_that_starts_a_launcher_is_reported_while_it_runs(bench: Bench) -> None:
    """With the line to type instead."""
    bench.write("bin/msrun", "#!/bin/sh\nsleep 4\n").chmod(0o700)
    bench.write("train.py", "import subprocess\nsubprocess.run(['env', 'bin/msrun', '--worker_num=2', 'net.py'])\n")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 0, done.stderr
    before = done.stdout.partition(" succeeded after ")[0]
    assert "starts ranks itself: /bin/sh bin/msrun --worker_num=2 net.py" in before


def test_other_processes_of_ranks_are_not_reported(bench: Bench) -> None:
    """Children with the rank's own variables, and a single process that is a group of its own."""
    children = "sleep 38 & RANK_ID=0 RANK_SIZE=1 sleep 38 &"
    bench.write("train.py", f"import os\nos.system({children!r})\n")
    bench.mslaunch("train", "-n", "2")
    assert bench.record()["warnings"] == []
