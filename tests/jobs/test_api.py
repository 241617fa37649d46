"""The Python API with real jobs: Job, Run, events and runs()."""

from __future__ import annotations

import asyncio
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import mslaunch
from mslaunch.errors import ConfigError, RequestError
from mslaunch.run import launchers
from mslaunch.run.paths import RunFolder
from tests.conftest import Bench, wait_for

HELLO = "import os\nprint('rank', os.environ['RANK_ID'])\n"
WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
STEPS = """import time
for step in (1, 2):
    print(f"epoch: 1 step: {step}, loss is 0.{step}", flush=True)
    time.sleep(0.3)
"""
ONCE = """import os
first = not os.path.exists("second")
open("second", "w").close()
print(f"epoch: 1 step: {1 if first else 5}, loss is 0.5", flush=True)
if first:
    raise ValueError("first attempt")
"""
HEAVY = "{'numpy', 'paramiko', 'pydantic', 'yaml', 'jinja2', 'psutil', 'typer', 'rich', 'mindspore', 'cloudpickle'}"


@pytest.fixture
def here(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A folder to launch from that is the current one."""
    monkeypatch.chdir(bench.folder)
    return bench


def program(bench: Bench, text: str) -> subprocess.Popen[str]:
    """Start a program that uses the API."""
    path = bench.write("program.py", text)
    command = [sys.executable, str(path)]
    process = subprocess.Popen(
        command, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    bench.started.append(process)
    return process


def wait_until_ready(bench: Bench, ranks: int = 2) -> None:
    wait_for(lambda: all(bench.log(rank) == "ready\n" for rank in range(ranks)), "all ranks")


def test_plan_writes_nothing(here: Bench) -> None:
    """A plan is a value; making one leaves the folder as it was."""
    here.write("train.py", HELLO)
    plan = mslaunch.Job("train.py", workers=2).plan()
    assert plan.world_size == 2
    assert [path.name for path in here.folder.iterdir()] == ["train.py"]


def test_events_are_typed_and_in_order(here: Bench) -> None:
    """Start, steps, end: each rank's events in the order in which they happened, and RunEnded last."""
    here.write("train.py", STEPS)
    with mslaunch.Job("train.py", workers=2).start() as run:
        events = list(run.events())
        result = run.wait()
    first = [event for event in events if getattr(event, "rank", None) == 0]
    kinds = [mslaunch.RankStarted, mslaunch.RankProgress, mslaunch.RankProgress, mslaunch.RankEnded]
    assert [type(event) for event in first] == kinds
    assert [event.loss for event in first if isinstance(event, mslaunch.RankProgress)] == [0.1, 0.2]
    assert events[-1] == mslaunch.RunEnded("succeeded", 0)
    assert (result.state, result.exit_code, result.verdict, result.succeeded) == ("succeeded", 0, None, True)
    assert [(rank.rank, rank.exit_code) for rank in result.ranks] == [(0, 0), (1, 0)]


def test_events_of_a_past_run_are_the_same(here: Bench) -> None:
    """Whoever reads them later gets what was to be had at the time."""
    here.write("train.py", STEPS)
    with mslaunch.Job("train.py", workers=1).start() as run:
        live = [type(event) for event in run.events()]
    assert [type(event) for event in mslaunch.find_run().events()] == live


def test_settings_arguments_and_values_reach_the_script(here: Bench) -> None:
    """Lists of devices, paths, arguments that are numbers, and values that override the YAML."""
    here.write("cfg.yaml", "lr: 0.1\n")
    here.write(
        "train.py", "import os, sys\nprint(os.environ['DEVICE_ID'], sys.argv[-1], open('../../config.yaml').read())\n"
    )
    job = mslaunch.Job(
        Path("train.py"), config=Path("cfg.yaml"), devices=[2, 5], args=["--epochs", 3], values={"lr": 1e-5}
    )
    assert job.run().succeeded
    assert here.log(1).startswith("5 3 ")
    assert "lr: 1.0e-05" in here.log(1)


def test_leaving_the_block_stops_the_job(here: Bench) -> None:
    """Whether by its end or by an exception."""
    here.write("train.py", WAIT)
    with mslaunch.Job("train.py", workers=2).start() as run:
        wait_until_ready(here)
    with suppress(ZeroDivisionError), mslaunch.Job("train.py", workers=2).start() as other:
        wait_until_ready(here)
        raise ZeroDivisionError
    assert [run.state, other.state] == ["stopped", "stopped"]
    assert here.leftovers() == []


def test_run_raises_job_failed_with_the_verdict(here: Bench) -> None:
    """The exception names run, rank, reason and traceback, and survives pickling."""
    here.write("train.py", "import os\nif os.environ['RANK_ID'] == '1':\n    raise ValueError('NaN in loss')\n")
    with pytest.raises(mslaunch.JobFailed) as caught:
        mslaunch.Job("train.py", workers=2, run_id="bad").run()
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error).startswith("run bad failed: rank 1: ValueError: NaN in loss. See ")
    assert "raise ValueError('NaN in loss')" in str(error)
    assert (error.verdict.rank, error.verdict.cause, error.exit_code) == (1, "exception", 1)
    assert error.result.state == "failed"


def test_run_without_check_returns_the_failure(here: Bench) -> None:
    """check=False leaves it to the caller to look."""
    here.write("train.py", "raise SystemExit(7)\n")
    result = mslaunch.Job("train.py", workers=1).run(check=False)
    assert (result.state, result.exit_code, result.succeeded) == ("failed", 7, False)


def test_a_rank_that_exits_with_a_code_has_failed_and_the_stopped_ones_have_not(here: Bench) -> None:
    """RankFailed is for ranks that failed by themselves; others were stopped because of it."""
    here.write("train.py", "import os, sys, time\nif os.environ['RANK_ID'] == '1': sys.exit(4)\ntime.sleep(60)\n")
    with mslaunch.Job("train.py", workers=3).start() as run:
        events = list(run.events())
    assert [(e.rank, e.summary) for e in events if isinstance(e, mslaunch.RankFailed)] == [(1, "exited with code 4")]
    assert sorted(e.rank for e in events if isinstance(e, mslaunch.RankEnded)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (lambda: mslaunch.Job("nowhere.py"), "nowhere.py: no such script"),
        (lambda: mslaunch.Job("train.py", wokers=2), "wokers: there is no such setting; did you mean 'workers'?"),
        (lambda: mslaunch.Job("train.py", workers=0), "--workers: write 1 or more"),
        (lambda: mslaunch.Job("train.py", config="no.yaml"), "no.yaml: no such config"),
        (lambda: mslaunch.Job("train.py", args="--lr 1"), "args: write a list"),
        (lambda: mslaunch.Job("train.py", values={"seed": {1}}), "values: seed: YAML has no set"),
    ],
)
def test_a_wrong_request_raises_before_anything_starts(here: Bench, job: object, says: str) -> None:
    """What is wrong, with the fix; no run's folder is made."""
    here.write("train.py", HELLO)
    with pytest.raises(mslaunch.MslaunchError, match=re.escape(says)):
        job().run()  # type: ignore[operator]
    assert not here.runs.exists()


def test_wait_gives_up_after_a_time(here: Bench) -> None:
    """TimeoutError; the job goes on."""
    here.write("train.py", WAIT)
    with mslaunch.Job("train.py", workers=1).start() as run:
        wait_until_ready(here, 1)
        with pytest.raises(TimeoutError, match=r"has not ended after 0\.1 s"):
            run.wait(timeout=0.1)
        assert run.state == "running"


def test_it_works_in_a_thread_that_is_not_the_main_one(here: Bench) -> None:
    """No signal handler is needed, so any thread will do."""
    here.write("train.py", HELLO)
    results: list[mslaunch.Result] = []
    thread = threading.Thread(target=lambda: results.append(mslaunch.Job("train.py", workers=2).run()))
    thread.start()
    thread.join()
    assert results[0].succeeded


def test_it_works_inside_asyncio_and_takes_no_signal_handler(here: Bench) -> None:
    """In a worker thread or in the loop itself; handlers and the wake-up descriptor stay the loop's."""
    here.write("train.py", HELLO)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: None)
        before = [signal.getsignal(number) for number in numbers]
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        assert (await asyncio.to_thread(mslaunch.Job("train.py", workers=1).run)).succeeded
        with mslaunch.Job("train.py", workers=1).start() as run:
            assert [signal.getsignal(number) for number in numbers] == before
            current = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(current)
            assert current == wakeup
            assert run.wait().succeeded
        assert [signal.getsignal(number) for number in numbers] == before

    asyncio.run(main())


def test_two_jobs_run_at_once_in_one_program(here: Bench) -> None:
    """Each has its folder, its thread and its end."""
    here.write("train.py", "import os, time\nwhile not os.path.exists('../../../go'): time.sleep(0.02)\n")
    job = mslaunch.Job("train.py", workers=1)
    with job.start() as one, job.start() as two:
        wait_for(lambda: len(here.leftovers()) == 2, "both jobs")
        (here.runs / "go").touch()
        assert [one.wait().state, two.wait().state] == ["succeeded", "succeeded"]
    assert one.run_id != two.run_id


def test_jobs_started_from_many_threads_do_not_disturb_each_other(here: Bench) -> None:
    """All write into the same folder of runs."""
    here.write("train.py", HELLO)
    results: list[mslaunch.Result] = []
    threads = [
        threading.Thread(target=lambda: results.append(mslaunch.Job("train.py", workers=1).run())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.state for result in results] == ["succeeded"] * 4


def test_a_restart_is_an_event_and_later_steps_follow_it(here: Bench) -> None:
    """While it runs and afterwards: the first attempt's steps, the failure, Restarted, the second's steps."""
    here.write("train.py", ONCE)
    with mslaunch.Job("train.py", workers=1, max_restarts=1, backoff=0.2).start() as run:
        live = list(run.events())
        assert run.wait().succeeded
    past = list(mslaunch.find_run().events())
    expected = [
        mslaunch.RankStarted,
        mslaunch.RankProgress,
        mslaunch.RankFailed,
        mslaunch.RankEnded,
        mslaunch.Restarted,
        mslaunch.RankStarted,
        mslaunch.RankProgress,
        mslaunch.RankEnded,
        mslaunch.RunEnded,
    ]
    assert [type(event) for event in live] == expected
    assert [type(event) for event in past] == expected
    assert [event.step for event in past if isinstance(event, mslaunch.RankProgress)] == [1, 5]


def test_killing_the_program_leaves_no_process(bench: Bench) -> None:
    """kill -9 of the calling program ends the ranks; the run is lost."""
    bench.write("train.py", WAIT)
    caller = program(bench, "import mslaunch\nmslaunch.Job('train.py', workers=2).run()\n")
    wait_until_ready(bench)
    caller.kill()
    caller.wait(timeout=60)
    wait_for(lambda: not bench.leftovers(), "the ranks to end")
    assert mslaunch.find_run(runs_dir=bench.runs).state == "lost"


def test_ctrl_c_in_the_program_stops_the_job(bench: Bench) -> None:
    """SIGINT while run() waits: the job is stopped and recorded, then KeyboardInterrupt goes on."""
    bench.write("train.py", WAIT)
    caller = program(bench, "import mslaunch\nmslaunch.Job('train.py', workers=2).run()\n")
    wait_until_ready(bench)
    time.sleep(0.3)  # it is waiting by now
    caller.send_signal(signal.SIGINT)
    output = caller.communicate(timeout=30)[0]
    assert "KeyboardInterrupt" in output
    assert bench.record()["state"] == "stopped"
    assert bench.leftovers() == []


def test_a_variable_that_is_no_text_is_named_with_its_value() -> None:
    """Of a dozen variables, which one? No secret is true or false, so it is shown."""
    with pytest.raises(ConfigError, match=r"env\.FLAG: write a text, got True\."):
        mslaunch.Job("t.py", env={"OTHER": "x", "FLAG": True}).plan()


def test_ctrl_c_in_wait_stops_the_job(bench: Bench) -> None:
    """SIGINT while wait() waits outside of a with block: the job is stopped before KeyboardInterrupt goes on."""
    bench.write("train.py", WAIT)
    code = "import mslaunch\nrun = mslaunch.Job('train.py', workers=2).start()\n"
    code += "try:\n    run.wait()\nexcept KeyboardInterrupt:\n    print('state', run.state, flush=True)\n"
    caller = program(bench, code)
    wait_until_ready(bench)
    time.sleep(0.3)  # it is waiting by now
    caller.send_signal(signal.SIGINT)
    assert "state stopped" in caller.communicate(timeout=60)[0]
    assert bench.leftovers() == []


def test_a_second_ctrl_c_does_not_wait_for_the_grace(bench: Bench) -> None:
    """Ranks that ignore SIGTERM are killed at once when the program ends."""
    bench.write(
        "train.py",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(60)\n",
    )
    caller = program(bench, "import mslaunch\nmslaunch.Job('train.py', workers=1, grace=300).run()\n")
    wait_until_ready(bench, 1)
    time.sleep(0.3)
    caller.send_signal(signal.SIGINT)
    wait_for(lambda: '"signal": 15' in (bench.latest / "events.jsonl").read_text(), "the first request")
    caller.send_signal(signal.SIGINT)
    caller.communicate(timeout=30)
    assert bench.record()["state"] == "stopped"
    assert bench.leftovers() == []


def test_a_program_that_ends_stops_what_it_has_started(bench: Bench) -> None:
    """start() without a block: the job ends with the program, and its record says so."""
    bench.write("train.py", WAIT)
    caller = program(
        bench,
        "import mslaunch\nrun = mslaunch.Job('train.py', workers=1).start()\n"
        "next(line for line in run.logs(follow=True))\n",
    )
    assert caller.wait(timeout=60) == 0
    assert bench.record()["state"] == "stopped"
    assert bench.leftovers() == []


def test_a_forked_child_that_leaves_the_block_does_not_stop_the_job(bench: Bench) -> None:
    """The job belongs to the process that started it."""
    bench.write("train.py", "import time\ntime.sleep(1)\n")
    caller = program(
        bench,
        "import os, sys, mslaunch\n"
        "with mslaunch.Job('train.py', workers=1).start() as run:\n"
        "    if (pid := os.fork()) == 0:\n        sys.exit()\n"
        "    os.waitpid(pid, 0)\n    print(run.wait().state)\n",
    )
    assert caller.communicate(timeout=60)[0].endswith("succeeded\n")


def test_importing_mslaunch_imports_nothing_heavy() -> None:
    """`import mslaunch` loads itself alone; `from mslaunch import Job` no library."""
    code = (
        "import sys, mslaunch\nassert [n for n in sys.modules if n.startswith('mslaunch')] == ['mslaunch']\n"
        f"from mslaunch import Job\nJob('train.py', workers=2)\nprint({HEAVY} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_public_name_can_be_imported() -> None:
    """And nothing else is offered."""
    assert {name for name in mslaunch.__all__ if getattr(mslaunch, name) is not None} <= set(dir(mslaunch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mslaunch.nothing  # type: ignore[attr-defined]


def test_past_runs_are_listed_and_found(here: Bench) -> None:
    """Oldest first; by name, by its beginning, or the newest."""
    here.write("train.py", HELLO)
    for name in ("abc", "abd"):
        mslaunch.Job("train.py", workers=1, run_id=name).run()
    assert [run.run_id for run in mslaunch.runs()] == ["abc", "abd"]
    assert [run.run_id for run in mslaunch.runs(here.runs)] == ["abc", "abd"]
    assert [mslaunch.find_run().run_id, mslaunch.find_run("abc").run_id] == ["abd", "abc"]
    assert mslaunch.find_run("abc").result.succeeded
    with pytest.raises(mslaunch.MslaunchError, match="fits 2 runs"):
        mslaunch.find_run("ab")
    assert mslaunch.runs("elsewhere") == []


def test_logs_are_the_lines_of_one_rank(here: Bench) -> None:
    """The last line need not end; a rank that is not there is refused."""
    here.write("train.py", "import os\nprint('one')\nprint(os.environ['RANK_ID'], end='')\n")
    mslaunch.Job("train.py", workers=2).run()
    run = mslaunch.find_run()
    assert list(run.logs(rank=1)) == ["one", "1"]
    assert list(run.logs(follow=True)) == ["one", "0"]
    with pytest.raises(RequestError, match="ranks 0 to 1"):
        run.logs(rank=2)


def test_a_run_of_the_command_line_is_stopped_from_python(bench: Bench) -> None:
    """Its launcher gets SIGTERM, as from `mslaunch stop`."""
    bench.write("train.py", WAIT)
    command = bench.start("train", "-n", "2")
    wait_until_ready(bench)
    assert mslaunch.find_run(runs_dir=bench.runs).stop().state == "stopped"
    assert command.wait(timeout=30) == 128 + signal.SIGTERM
    assert bench.leftovers() == []


PATIENT = """import mslaunch, signal, time
caught = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda *what: caught.append(what))
with mslaunch.Job("train.py", workers=2).start() as run:
    print(run.wait().state, caught)
"""


def test_mslaunch_stop_stops_a_run_inside_a_program_and_not_the_program(bench: Bench) -> None:
    """The program gets no signal; its run ends as stopped, and no request is left in the folder."""
    bench.write("train.py", WAIT)
    caller = program(bench, PATIENT)
    wait_until_ready(bench)
    assert bench.record()["launcher"]["in_process"] is True
    stopped = bench.mslaunch("stop")
    assert stopped.stdout.endswith(": stopped\n"), stopped.stderr
    assert caller.communicate(timeout=30)[0] == "stopped []\n"
    assert list(bench.latest.glob("*.request")) == []


def test_mslaunch_stop_ends_a_run_whose_program_was_killed(bench: Bench) -> None:
    """Nobody is left to ask; the run is lost, and nothing of it remains."""
    bench.write("train.py", WAIT)
    caller = program(bench, PATIENT)
    wait_until_ready(bench)
    caller.kill()
    caller.wait()
    assert bench.mslaunch("stop").stdout.endswith(": lost\n")
    assert bench.leftovers() == []


def test_two_at_once_can_stop_a_run_inside_a_program(bench: Bench) -> None:
    """Both are answered."""
    bench.write("train.py", WAIT)
    program(bench, PATIENT)
    wait_until_ready(bench)
    both = [bench.start("stop"), bench.start("stop")]
    assert [process.communicate(timeout=60)[0].split()[-1] for process in both] == ["stopped", "stopped"]


def test_stacks_of_a_run_inside_a_program(here: Bench) -> None:
    """From the program itself, from its list of runs, and from the command line."""
    here.write("train.py", WAIT)
    with mslaunch.Job("train.py", workers=2).start() as run:
        wait_until_ready(here)
        for groups in (run.stacks(), mslaunch.runs()[0].stacks()):
            assert "train.py:3" in groups[0]
        assert "train.py:3" in here.mslaunch("stacks").stdout
        assert mslaunch.runs()[0].stop().state == "stopped"
        assert run.has_ended
    with pytest.raises(RequestError, match="is not running"):
        run.stacks()


def test_a_request_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """No signal is sent instead: it would reach this very process."""
    with pytest.raises(mslaunch.MslaunchError, match="cannot be written"):
        launchers.ask(RunFolder(tmp_path / "gone"), launchers.this_process(in_process=True), "stop")
