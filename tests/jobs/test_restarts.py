"""Jobs that are started again: what is kept, what is not tried, and when it ends."""

from __future__ import annotations

import json
import signal

import pytest

from tests.conftest import ROOT, Bench, wait_for


def test_restarts_keep_logs_and_count_attempts(bench: Bench) -> None:
    """A job that fails twice and then succeeds is a success; each attempt has its log, plan and port."""
    bench.write(
        "train.py",
        "import os, sys\nprint('attempt', os.environ['MSLAUNCH_ATTEMPT'], os.environ['MS_SCHED_PORT'])\n"
        "sys.exit(0 if os.environ['MSLAUNCH_ATTEMPT'] == '2' else 5)\n",
    )
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml", "--max-restarts", "3")
    assert done.returncode == 0, done.stdout
    assert "attempt 3 of 4 in 0 s, from the start" in done.stdout
    logs = [(bench.latest / "rank_0" / name).read_text().split() for name in ("log.0.txt", "log.1.txt", "log.txt")]
    assert [words[1] for words in logs] == ["0", "1", "2"]
    assert len({words[2] for words in logs}) == 3
    assert [json.loads((bench.latest / f"plan.{k}.json").read_text())["attempt"] for k in (0, 1)] == [0, 1]
    assert [attempt["exit_code"] for attempt in bench.record()["attempts"]] == [5, 5]
    assert bench.record()["state"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "code"),
    [("x = (\n", 1), ("import no_such_module\n", 1), ("open('/no/such/file')\n", 1), ("raise SystemExit(42)\n", 42)],
)
def test_what_a_restart_cannot_mend_is_not_tried_again(bench: Bench, body: str, code: int) -> None:
    """Syntax errors, missing modules and files, and codes in launch.no_restart_codes end the job at once."""
    bench.write("train.py", body)
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  no_restart_codes: [42]\n  max_restarts: 5\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == code
    assert "attempt 2" not in done.stdout
    assert bench.record()["attempts"] == []


def test_restarts_end_at_their_limit_with_the_last_verdict(bench: Bench) -> None:
    """The exit code is the last attempt's."""
    bench.write("train.py", "import os\nraise SystemExit(int(os.environ['MSLAUNCH_ATTEMPT']) + 10)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "2", "-c", "cfg.yaml", "--max-restarts", "2")
    assert done.returncode == 12
    assert bench.record()["verdict"]["exit_code"] == 12


def test_the_same_exception_at_the_same_step_is_not_tried_a_third_time(bench: Bench) -> None:
    """The restarts that are left would end in the same way."""
    bench.write("train.py", "print('epoch: 1 step: 7, loss is 0.5')\nraise ValueError('bad batch')\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml", "--max-restarts", "5")
    assert done.returncode == 1
    assert "not started again: the same failure at the same step twice" in done.stdout
    assert len(bench.record()["attempts"]) == 1
    assert bench.record()["verdict"]["step"] == [1, 7]


SAVES = """
import os, shutil
step = int(os.environ["MSLAUNCH_ATTEMPT"]) + 1
os.makedirs("saved", exist_ok=True)
shutil.copy({checkpoint!r}, f"saved/net-1_{{min(step, 3)}}.ckpt")
raise SystemExit(5)
"""


MINDFORMERS = """
import os, shutil, sys
rank, attempt = os.environ["RANK_ID"], os.environ["MSLAUNCH_ATTEMPT"]
if attempt == "1":
    os.makedirs(f"checkpoint/rank_{{rank}}")
    shutil.copy({checkpoint!r}, f"checkpoint/rank_{{rank}}/llama_rank_{{rank}}-1_10.ckpt")
print(os.environ.get("MSLAUNCH_RESUME"), flush=True)
import pathlib, time
pathlib.Path(f"../../done{{rank}}{{attempt}}").touch()
while not pathlib.Path(f"../../done{{1 - int(rank)}}{{attempt}}").exists():
    time.sleep(0.05)
raise SystemExit(0 if attempt == "2" else 5)
"""


def test_attempts_that_save_something_new_use_up_no_restart(bench: Bench) -> None:
    """Three of them do; then the one restart that there is, is used up."""
    checkpoint = next((ROOT / "tests/fixtures/checkpoints").rglob("*.ckpt"))
    bench.write("train.py", SAVES.format(checkpoint=str(checkpoint)))
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  checkpoints: saved\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml", "--max-restarts", "1")
    assert done.returncode == 5
    assert "attempt 2 of 3 in 0 s, resuming from net-1_1.ckpt; there was progress" in done.stdout
    assert "not started again: launch.max_restarts (1) is used up" in done.stdout
    assert len(bench.record()["attempts"]) == 4


def test_the_layout_of_mindformers_is_resumed(bench: Bench) -> None:
    """checkpoint/rank_R below each rank's folder; before anything is saved the note says where was looked."""
    checkpoint = next((ROOT / "tests/fixtures/checkpoints").rglob("*.ckpt"))
    bench.write("train.py", MINDFORMERS.format(checkpoint=str(checkpoint)))
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  checkpoints: checkpoint\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "2", "-c", "cfg.yaml", "--max-restarts", "2")
    assert done.returncode == 0, done.stdout
    assert "attempt 2 of 3 in 0 s, no checkpoint found in checkpoint, starting from step 0" in done.stdout
    assert "resuming from llama_rank_0-1_10.ckpt" in done.stdout
    for rank in range(2):
        assert f"checkpoint/rank_{rank}/llama_rank_{rank}-1_10.ckpt" in bench.log(rank)


def test_ctrl_c_ends_the_pause_before_a_restart(bench: Bench) -> None:
    """Nothing is started any more."""
    bench.write("train.py", "raise SystemExit(5)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 60\n  config_arg: null\n")
    process = bench.start("train", "-n", "1", "-c", "cfg.yaml", "--max-restarts", "2")
    wait_for(lambda: bench.runs.exists() and (bench.latest / "plan.0.json").exists(), "the pause")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert bench.record()["state"] == "stopped"


def test_between_two_attempts_status_tells_how_the_ranks_ended(bench: Bench) -> None:
    """No rank runs while the launcher waits; the one that was stopped is no failure."""
    bench.write("train.py", "import os, time\nif os.environ['RANK_ID'] == '1': raise SystemExit(5)\ntime.sleep(600)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 60\n  config_arg: null\n")
    process = bench.start("train", "-n", "2", "-c", "cfg.yaml", "--max-restarts", "5")
    try:
        wait_for(lambda: bench.runs.exists() and "waiting for" in bench.mslaunch("status").stdout, "the pause")
        shown = bench.mslaunch("status").stdout
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert ": waiting for attempt 2, " in shown.splitlines()[0]
    assert "note: attempt 2 of 6 in 60 s" in shown
    rows = [line.split() for line in shown.splitlines() if "localhost" in line]
    assert [next(word for word in row if word in ("running", "stopped", "failed")) for row in rows] == [
        "stopped",
        "failed",
    ]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_only_asks_does_not_end_the_pause(bench: Bench, number: signal.Signals) -> None:
    """A warning, or a wish for stacks, while no rank is there; the Ctrl-C after it ends the run."""
    bench.write("train.py", "raise SystemExit(5)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 60\n  config_arg: null\n")
    process = bench.start("train", "-n", "1", "-c", "cfg.yaml", "--max-restarts", "2")
    wait_for(lambda: bench.runs.exists() and (bench.latest / "plan.0.json").exists(), "the pause")
    process.send_signal(number)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_every_method_restarts(bench: Bench) -> None:
    """A rendered script takes port and attempt from the plan of its attempt."""
    bench.write("train.py", "import os, sys\nsys.exit(0 if os.environ['MSLAUNCH_ATTEMPT'] == '1' else 5)\n")
    bench.write("cfg.yaml", "launch:\n  backoff: 0\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "2", "-c", "cfg.yaml", "--max-restarts", "1", "--method", "rank-table")
    assert done.returncode == 0, done.stdout
    (first,) = bench.record()["attempts"]
    failed = bench.latest / f"rank_{first['verdict']['rank']}"
    assert json.loads((failed / "exit.0.json").read_text())["code"] == 5
