"""launch.sync: copies between a real S3 server and a host, before ranks start and after they have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.beds.driven_agent import driven_agent
from tests.beds.join_bed import start_here
from tests.beds.ssh_bed import free_port
from tests.conftest import Bench, wait_for

KEYS = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-this-test"}
MOXING = '''"""A stand-in for moxing: a bucket is a folder of this machine."""

import os
import shutil
import types


def place(path):
    return os.environ["FAKE_BUCKETS"] + "/" + path[len("obs://"):] if path.startswith("obs://") else path


def copy_parallel(source, target):
    shutil.copytree(place(source), place(target), dirs_exist_ok=True)


def copy(source, target):
    os.makedirs(os.path.dirname(place(target)), exist_ok=True)
    shutil.copy(place(source), place(target))


file = types.SimpleNamespace(
    exists=lambda path: os.path.exists(place(path)),
    is_directory=lambda path: os.path.isdir(place(path)),
    copy=copy,
    copy_parallel=copy_parallel,
)
'''

SLOW = """

def wait(source, target):
    import time

    with open(os.environ["PID_FILE"], "w") as told:
        told.write(f"{os.getpid()}\\n")
    time.sleep(1000)


file.copy_parallel = wait
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(address: str) -> Any:
    """A client of a server with one bucket that holds two files."""
    keys = {name.lower(): value for name, value in KEYS.items()}
    client = boto3.client("s3", endpoint_url=address, **keys)
    client.create_bucket(Bucket="bucket")
    for name in [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket").get("Contents", ())]:
        client.delete_object(Bucket="bucket", Key=name)
    for name in ("data/one.txt", "data/deep/two.txt", "database/other.txt"):
        client.put_object(Bucket="bucket", Key=name, Body=name.encode())
    return client


def names(store: Any) -> list[str]:
    return [entry["Key"] for entry in store.list_objects_v2(Bucket="bucket")["Contents"]]


def write_config(bench: Bench, before: str = "", after: str = "", **more: Any) -> None:
    """Fetch `before` into cache/, and send `after`, where they are given."""
    sync: dict[str, Any] = {
        "before": [{"from": before, "to": f"{bench.folder}/cache"}] if before else [],
        "after": [{"from": "outputs", "to": after}] if after else [],
    }
    bench.write("cfg.yaml", json.dumps({"launch": {"config_arg": None, "sync": sync, **more}}))


WRITE = "import os\nos.makedirs('outputs/sub')\nopen('outputs/sub/a.txt', 'w').write(os.environ['RANK_ID'])\n"


def train(bench: Bench, ranks: int = 1, **env: str) -> tuple[int, str]:
    done = bench.mslaunch("train", "-n", str(ranks), "-c", "cfg.yaml", "--env", "AWS_SECRET_ACCESS_KEY", **KEYS, **env)
    return done.returncode, done.stdout + done.stderr


def test_data_comes_before_the_ranks_and_goes_after_them(bench: Bench, store: Any, address: str) -> None:
    """Each rank finds the data, and what each has written is in a folder of its own."""
    write_config(bench, "obs://bucket/data", "obs://bucket/out")
    bench.write("train.py", WRITE + f"print(open('{bench.folder}/cache/deep/two.txt').read())\n")
    code, output = train(bench, 2, S3_ENDPOINT_URL=address)
    assert code == 0, output
    assert bench.log(1) == "data/deep/two.txt\n"
    assert sorted(path.name for path in (bench.folder / "cache").rglob("*.txt")) == ["one.txt", "two.txt"]
    sent = {name: store.get_object(Bucket="bucket", Key=name)["Body"].read() for name in names(store) if "out" in name}
    assert sent == {"out/rank_0/sub/a.txt": b"0", "out/rank_1/sub/a.txt": b"1"}


def test_keys_are_in_no_file_of_the_run(bench: Bench, store: Any, address: str) -> None:
    """They come from the environment; plan, events and logs do not hold them."""
    del store
    write_config(bench, "obs://bucket/data", "obs://bucket/out")
    bench.write("train.py", WRITE)
    code, output = train(bench, S3_ENDPOINT_URL=address)
    assert code == 0
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    assert secret not in output
    files = [path for path in bench.latest.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_a_folder_that_ranks_share_is_sent_once(bench: Bench, store: Any, address: str) -> None:
    """It goes to the named folder itself."""
    write_config(bench, after="obs://bucket/out", shared=["outputs"])
    bench.write("outputs/a.txt", "")
    bench.write("train.py", "open('outputs/b.txt', 'w').write('b')\n")
    code, output = train(bench, 2, S3_ENDPOINT_URL=address)
    assert code == 0, output
    assert [name for name in names(store) if "out" in name] == ["out/a.txt", "out/b.txt"]


def test_a_failed_job_sends_its_outputs_too(bench: Bench, store: Any, address: str) -> None:
    """The exit code is the job's."""
    write_config(bench, after="obs://bucket/out")
    bench.write("train.py", WRITE + "raise SystemExit(7)\n")
    assert train(bench, S3_ENDPOINT_URL=address)[0] == 7
    assert "out/rank_0/sub/a.txt" in names(store)


def test_a_failed_upload_is_told_and_deletes_nothing(bench: Bench, address: str) -> None:
    """The bucket does not exist; the job has succeeded all the same."""
    write_config(bench, after="obs://nobucket/out")
    bench.write("train.py", WRITE)
    code, output = train(bench, S3_ENDPOINT_URL=address)
    assert code == 0
    assert "launch.sync did not send everything, nothing is deleted: outputs to obs://nobucket/out" in output
    assert "NoSuchBucket" in output
    assert (bench.work(0) / "outputs" / "sub" / "a.txt").exists()


@pytest.mark.parametrize(
    ("source", "why"), [("obs://bucket/nothing", "holds nothing"), ("obs://nobucket/x", "NoSuchBucket")]
)
def test_data_that_cannot_be_fetched_starts_nothing(
    bench: Bench, store: Any, address: str, source: str, why: str
) -> None:
    """Exit code 3, with what was wanted and why it did not come; nothing is sent either."""
    write_config(bench, source, "obs://bucket/out")
    bench.write("train.py", WRITE)
    code, output = train(bench, S3_ENDPOINT_URL=address)
    assert code == 3
    assert "launch.sync failed on localhost" in output
    assert source in output
    assert why in output
    assert "Traceback" not in output
    assert not (bench.latest / "rank_0").exists()
    assert [name for name in names(store) if name.startswith("out")] == []


def test_a_name_that_leads_out_of_the_folder_is_refused(bench: Bench, store: Any, address: str) -> None:
    """Whoever fills the bucket does not write elsewhere."""
    store.put_object(Bucket="bucket", Key="data/../../evil.txt", Body=b"")
    write_config(bench, "obs://bucket/data")
    bench.write("train.py", "")
    code, output = train(bench, S3_ENDPOINT_URL=address)
    assert code == 3
    assert "which would be written outside of" in output
    assert not (bench.folder / "cache").exists()


def test_an_obs_address_needs_an_endpoint(bench: Bench) -> None:
    """Without one boto3 would ask Amazon."""
    write_config(bench, "obs://bucket/data")
    bench.write("train.py", "")
    code, output = train(bench)
    assert code == 3
    assert "set launch.sync.endpoint or S3_ENDPOINT_URL" in output


def test_neither_library_is_one_sentence(bench: Bench) -> None:
    """The sentence names the Python and what to install."""
    bench.write("lib/boto3.py", "raise ImportError\n")
    write_config(bench, "obs://bucket/data")
    bench.write("train.py", "")
    code, output = train(bench, PYTHONPATH=str(bench.folder / "lib"))
    assert code == 3
    assert "neither moxing nor boto3 can be imported by" in output
    assert "pip install boto3" in output
    assert "Traceback" not in output


def test_moxing_is_taken_where_it_is_installed(bench: Bench, tmp_path: Path) -> None:
    """With a stand-in for it, which needs no endpoint."""
    buckets = tmp_path / "buckets"
    (buckets / "bucket" / "data").mkdir(parents=True)
    (buckets / "bucket" / "data" / "one.txt").write_text("1")
    bench.write("lib/moxing.py", MOXING)
    write_config(bench, "obs://bucket/data", "obs://bucket/out")
    bench.write("train.py", WRITE + f"print(open('{bench.folder}/cache/one.txt').read())\n")
    code, output = train(bench, PYTHONPATH=str(bench.folder / "lib"), FAKE_BUCKETS=str(buckets))
    assert code == 0, output
    assert bench.log(0) == "1\n"
    assert (buckets / "bucket" / "out" / "rank_0" / "sub" / "a.txt").read_text() == "0"


def test_data_is_fetched_once_over_restarts(bench: Bench, tmp_path: Path) -> None:
    """A second attempt finds what the first one has made of it, and sends again."""
    buckets = tmp_path / "buckets"
    (buckets / "bucket" / "data").mkdir(parents=True)
    (buckets / "bucket" / "data" / "one.txt").write_text("0")
    bench.write("lib/moxing.py", MOXING)
    write_config(bench, "obs://bucket/data", "obs://bucket/out", max_restarts=1, backoff=0)
    path = f"'{bench.folder}/cache/one.txt'"
    bench.write(
        "train.py",
        f"import os\nseen = open({path}).read()\nopen({path}, 'w').write('1')\n"
        "os.makedirs('outputs', exist_ok=True)\nopen('outputs/' + seen, 'w').close()\nraise SystemExit(seen == '0')\n",
    )
    code, output = train(bench, PYTHONPATH=str(bench.folder / "lib"), FAKE_BUCKETS=str(buckets))
    assert code == 0, output
    assert sorted(path.name for path in (buckets / "bucket" / "out" / "rank_0").iterdir()) == ["0", "1"]


def test_keys_reach_other_hosts_over_ssh(far: Bench, store: Any, address: str) -> None:
    """Both hosts fetch and send; the keys are named with --env and written nowhere."""
    write_config(far, "obs://bucket/data", "obs://bucket/out")
    config = json.loads((far.folder / "cfg.yaml").read_text())
    config["launch"]["sync"]["endpoint"] = address
    far.write("cfg.yaml", json.dumps(config))
    far.write("train.py", WRITE + f"print(open('{far.folder}/cache/one.txt').read())\n")
    names_of_keys = [word for name in KEYS for word in ("--env", name)]
    done = far.mslaunch("train", "--hosts", "n1:1,n2:1", "-c", "cfg.yaml", *names_of_keys, **KEYS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert far.log(1) == "data/one.txt\n"
    assert {"out/rank_0/sub/a.txt", "out/rank_1/sub/a.txt"} <= set(names(store))
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in (far.latest / "plan.json").read_text()


def test_nodes_that_join_fetch_and_send_each_for_itself(bench: Bench, store: Any, address: str) -> None:
    """The keys are those of each node's own environment."""
    write_config(bench, "obs://bucket/data", "obs://bucket/out", workers_per_node=1)
    bench.write("train.py", WRITE)
    line = ["train", "-c", "cfg.yaml", "--nnodes", "2", "--master", f"127.0.0.1:{free_port()}", "--node-rank"]
    nodes = [start_here(bench, *line, str(rank), **KEYS, S3_ENDPOINT_URL=address) for rank in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].text
    assert [name for name in names(store) if "out" in name] == ["out/rank_0/sub/a.txt", "out/rank_1/sub/a.txt"]


def test_an_agent_that_sends_is_heard_of_and_can_be_stopped(tmp_path: Path) -> None:
    """It tells that it is alive without being asked; a stop ends the copy, which is told before `idle`."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o700)
    move = {"source": "outputs", "target": "obs://bucket/out"}
    sync = {"python": str(python), "before": [], "after": [move], "endpoint": None}
    with driven_agent(tmp_path) as agent:
        agent.run("true", sync=sync, answers=False)
        agent.until("exited", rank=0)
        agent.send({"do": "finish"})
        agent.until("pulse")
        agent.send({"do": "stop", "grace": 600.0})
        events = agent.until("idle")
    assert "signal 15" in next(event["text"] for event in events if event["ev"] == "agent-note")


def test_a_copy_ends_with_the_launcher(bench: Bench, tmp_path: Path) -> None:
    """kill -9 of the launcher while data is sent leaves no process."""
    bench.write("lib/moxing.py", MOXING + SLOW)
    write_config(bench, after="obs://bucket/out")
    bench.write("train.py", WRITE)
    pid = tmp_path / "pid"
    env = {"PYTHONPATH": str(bench.folder / "lib"), "PID_FILE": str(pid)}
    launcher = bench.start("train", "-n", "1", "-c", "cfg.yaml", **env)
    wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"), "the copy to begin")
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_for(lambda: not Path("/proc", pid.read_text().strip()).exists(), "the copy to end")


def test_rendered_scripts_tell_that_they_do_not_copy(bench: Bench) -> None:
    """Somebody who runs them elsewhere has to do it."""
    write_config(bench, "obs://bucket/data")
    bench.write("train.py", "")
    done = bench.mslaunch("render", "--method", "msrun", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == 0
    assert "the scripts leave out launch.sync" in done.stderr
