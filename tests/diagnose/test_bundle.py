"""Bundles: everything that a verdict rests on in one file, without secrets, and the same verdict elsewhere."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mslaunch.masking.documents import mask_document, mask_values
from mslaunch.masking.free_text import mask_text
from tests.beds.hccl_logs import Job
from tests.conftest import Bench

SECRET = "s3cr3t-" + "value"
RAISES = f"""
import os
print("epoch: 1 step: 7, loss is 3")
print("HF_TOKEN={SECRET}")
if os.environ["RANK_ID"] == "1":
    raise ValueError("cannot log in with password={SECRET}")
import time; time.sleep(30)
"""


def verdict_of(bench: Bench, what: str, *more: str) -> Any:
    done = bench.mslaunch("diagnose", what, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def without_place(verdict: Any, place: str) -> Any:
    return json.loads(json.dumps(verdict).replace(place, "PLACE"))


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def moved(bench: Bench, name: str) -> str:
    """Move a bundle away from the logs that it was made of."""
    target = bench.folder / "elsewhere" / name
    target.parent.mkdir()
    (bench.folder / name).rename(target)
    return str(target)


def test_a_bundle_of_logs_gives_the_same_verdict_elsewhere(bench: Bench) -> None:
    """Line numbers are those of the whole logs, though most lines are left out."""
    job = Job(bench.folder / "logs", 24)
    for rank in range(12):
        job.lines[rank] = [job.line(rank, 2.0, f"[x.cc:1] step {number}", "INFO") for number in range(20000)]
        job.waits(rank, rank + 1)
        job.lines[rank] += [job.line(rank, 200.0, f"[x.cc:1] step {number}", "INFO") for number in range(3000)]
    job.write()
    here = verdict_of(bench, "logs", "--bundle", "b.zip")
    bundle = moved(bench, "b.zip")
    assert Path(bundle).stat().st_size < 1_000_000
    there = verdict_of(bench, bundle)
    assert without_place(there, f"{bundle}/logs") == without_place(here, "logs")
    assert here["chain"][0]["line"] > 20000


def test_a_bundle_of_a_run_holds_its_records_and_no_secret(bench: Bench) -> None:
    """Verdict, plan, config, environment and logs; secrets are masked in all of them."""
    bench.write("train.py", RAISES)
    bench.mslaunch("train", "-n", "2", "--env", "MY_PASSWORD", MY_PASSWORD=SECRET)
    here = verdict_of(bench, "latest", "--bundle", "b.zip")
    found = contents(bench.folder / "b.zip")
    assert {"logs/run.json", "logs/plan.json", "logs/rank_1/log.txt", "logs/rank_1/error.json"} <= set(found)
    assert not [name for name, data in found.items() if SECRET.encode() in data]
    about = json.loads(found["bundle.json"])
    assert {"mslaunch", "python"} <= set(about["versions"])
    assert about["host"]["cores"]
    there = verdict_of(bench, moved(bench, "b.zip"))
    masked = json.loads(json.dumps(here).replace(SECRET, "***"))
    assert {key: there[key] for key in ("rank", "cause", "summary", "line", "exit_code", "step")} == {
        key: masked[key] for key in ("rank", "cause", "summary", "line", "exit_code", "step")
    }
    assert there["log"].endswith("elsewhere/b.zip/logs/rank_1/log.txt")


def test_a_bundle_stays_below_twenty_megabytes(bench: Bench) -> None:
    """Text that cannot be packed is left out in time; the lines that tell something are kept."""
    chance = random.Random(1)
    for rank in range(40):
        lines = [f"EI0006: Getting socket times out. {chance.randbytes(400).hex()}" for _ in range(1500)]
        bench.write(f"logs/worker_{rank}.log", "\n".join(lines))
    here = verdict_of(bench, "logs", "--bundle", "b.zip")
    assert (bench.folder / "b.zip").stat().st_size < 20_000_000
    there = verdict_of(bench, "b.zip")
    assert (there["rank"], there["pattern"]) == (here["rank"], here["pattern"])


def test_a_bundle_overwrites_nothing(bench: Bench) -> None:
    """A file that is there already is refused."""
    bench.write("logs/worker_0.log", "x\n")
    bench.write("b.zip", "mine")
    done = bench.mslaunch("diagnose", "logs", "--bundle", "b.zip")
    assert done.returncode == 2
    assert "b.zip: it exists already. Name another file" in done.stderr
    assert (bench.folder / "b.zip").read_text() == "mine"


@pytest.mark.parametrize("about", [None, b"[1]", b"{", b'{"record": {"run_id": 3}}', b'{"record": "x"}'])
def test_a_zip_that_is_no_bundle_is_refused_in_one_sentence(bench: Bench, about: bytes | None) -> None:
    """Whatever is in it, there is no traceback."""
    with zipfile.ZipFile(bench.folder / "b.zip", "w") as archive:
        archive.writestr("logs/worker_0.log", "x\n")
        if about is not None:
            archive.writestr("bundle.json", about)
    done = bench.mslaunch("diagnose", "b.zip")
    assert done.returncode == 2
    assert "b.zip: not a bundle that can be read" in done.stderr
    assert "Traceback" not in done.stderr


def write_zip(path: Path, names: list[str], method: int = zipfile.ZIP_DEFLATED, text: bytes = b"x\n") -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("bundle.json", b'{"record": null}')
        for name in names:
            archive.writestr(name, text)


def encrypt(path: Path) -> None:
    """Say in the headers of a zip file that its members are encrypted."""
    data = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.find(mark)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(mark, at + 4)
    path.write_bytes(data)


def make_hostile(path: Path, kind: str) -> None:
    if kind == "outside":
        write_zip(path, ["logs/../../evil.log"])
    elif kind == "absolute":
        write_zip(path, ["logs//evil.log"])
    elif kind == "other packing":
        write_zip(path, ["logs/worker_0.log"], zipfile.ZIP_LZMA)
    elif kind == "bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bundle.json", b'{"record": null}')
            archive.writestr("logs/worker_0.log", b"x\n")
            archive.filelist[1].file_size = 3 << 30
    else:
        write_zip(path, ["logs/worker_0.log"])
        if kind == "encrypted":
            encrypt(path)
        else:
            data = path.read_bytes()
            path.write_bytes(data[: {"cut off": len(data) - 10, "half": len(data) // 2, "empty": 0}[kind]])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("outside", "it names a file outside of it, '../../evil.log'"),
        ("absolute", "it names a file outside of it"),
        ("other packing", "worker_0.log is packed in a way that bundles are not"),
        ("bomb", "it would unpack to more than 2 GB"),
        ("encrypted", "is encrypted"),
        ("cut off", "not a zip file that can be read; it may be cut off"),
        ("half", "not a zip file that can be read"),
        ("empty", "not a zip file that can be read"),
    ],
)
def test_a_hostile_zip_is_refused_in_one_sentence(bench: Bench, kind: str, words: str) -> None:
    """Nothing of it is written anywhere."""
    make_hostile(bench.folder / "b.zip", kind)
    before = sorted(bench.folder.parent.rglob("*"))
    done = bench.mslaunch("diagnose", "b.zip")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(bench.folder.parent.rglob("*")) == before


def test_a_bundle_of_many_logs_is_opened_once(bench: Bench) -> None:
    """The list of its members is not read again for each of them, which would take minutes."""
    write_zip(bench.folder / "b.zip", [f"logs/worker_{number}.log" for number in range(20_000)])
    done = bench.mslaunch("diagnose", "b.zip")
    assert "no sign of a failure" in done.stdout, done.stderr


def test_a_damaged_log_in_a_bundle_is_a_note(bench: Bench) -> None:
    """The others are read."""
    bench.write("logs/worker_0.log", "Traceback (most recent call last):\nValueError: x\n")
    bench.write("logs/worker_1.log", "marked line of another log\n" * 50)
    bench.mslaunch("diagnose", "logs", "--bundle", "b.zip")
    path = bench.folder / "b.zip"
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("logs/worker_1.log").header_offset
    data = bytearray(path.read_bytes())
    data[at + 50 : at + 60] = b"\xff" * 10
    path.write_bytes(data)
    done = bench.mslaunch("diagnose", "b.zip")
    assert "First to fail: rank 0" in done.stdout
    assert "not read to its end" in done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=abcdef", "export HF_TOKEN=***"),
        ('"DB_PASSWORD": "a b c", "x": 1', '"DB_PASSWORD": "***", "x": 1'),
        ("password: hunter22", "password: ***"),
        ("run --api-key abcdef --lr 0.1", "run --api-key *** --lr 0.1"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: *** ***"),
        ("got https://me:pw@host/x?token=abc", "got https://***@host/x?token=***"),
        ("login with hf_abcdefghijklmnopqrstuvwx", "login with ***"),
        (
            "argv ['a.py', '--api-key', 'abcdef', '--token=abcdef', '-x']",
            "argv ['a.py', '--api-key', '***', '--token=***', '-x']",
        ),
        ("Cookie: sessionid=abcdefgh; theme=dark", "Cookie: ***"),
        ("AK=ABCDEFGH01234567 SK=abcdefgh0123456789", "AK=*** SK=***"),
        ("wandb login abcdefgh0123456789", "wandb login ***"),
        ("key AIzaabcdefgh0123456789abcdefghijklmno", "key ***"),
        ("MIIEpAIBAAKCAQEAabcdefgh0123456789abcdefgh0123456789abcdefgh0123", "***"),
        ("abcdefgh0123456789==", "***"),
        ('{"k": "-----BEGIN PRIVATE KEY-----\\nabcdefgh\\n-----END PRIVATE KEY-----"}', None),
        ("sk: 3, --lr 0.1 -n 2 --token 7", "sk: 3, --lr 0.1 -n 2 --token 7"),
        ("tokens: 512 key: 3 lr=0.1", "tokens: 512 key: 3 lr=0.1"),
        ("[ERROR] HCCL(1,python):2026-03-01-08:00:00.000.000 [x.cc:1] y", None),
        ('say: "PASSWORD=abc"', 'say: "PASSWORD=***"'),
        ("the value is topsecret1 here", "the value is *** here"),
        ("SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/abcdefgh01234567", "SLACK_WEBHOOK_URL=***"),
        ("post https://hooks.slack.com/services/T0/B0/abcdefgh01234567 ok", "post https://hooks.slack.com/*** ok"),
        ("https://open.feishu.cn/bot/v2/hook/abcdefgh-0123-4567", "https://open.feishu.cn/bot/v2/hook/***"),
        ("pwd: abcdefgh, bearer=abcdefgh", "pwd: ***, bearer=***"),
        ("GET /o?X-Amz-Date=3&X-Amz-Signature=abcdefgh", "GET /o?X-Amz-Date=3&X-Amz-Signature=***"),
        ("https://b.s3/o?x=3&X-Amz-Signature=abcdefgh", "https://b.s3/o?x=3&X-Amz-Signature=***"),
        ("+ curl -s -u me:abcdefgh https://h/x", "+ curl -s -u me:*** https://h/x"),
        ("['curl', '-ume:abcdefgh', '-o', 'f']", "['curl', '-ume:***', '-o', 'f']"),
        ("mysqldump -h db -pabcdefgh x | gzip -p3", "mysqldump -h db -p*** x | gzip -p3"),
        ("sshpass -p abcdefgh ssh -p 22 n1", "sshpass -p *** ssh -p 22 n1"),
        ("the password is: abcdefgh", "the password is: ***"),
        ("cannot use secret 'abcdefgh-X1'", "cannot use secret '***'"),
        ('wrong password "abcdefgh"', 'wrong password "***"'),
        ("\u5bc6\u7801\uff1aabcdefgh", "\u5bc6\u7801\uff1a***"),
    ],
)
def test_secrets_in_text_are_masked(text: str, shown: str | None) -> None:
    """By the name before them, by their form, or because they are known; numbers are counts."""
    assert "abcdefgh" not in mask_text(text, ["topsecret1"])
    if not text.startswith("Authorization") and "BEGIN" not in text:
        assert mask_text(text, ["topsecret1"]) == (text if shown is None else shown)


def test_words_of_a_command_are_masked_by_the_option_before_them() -> None:
    """A plan holds commands as lists of words."""
    words = ["python", "a.py", "--api-key", "abc", "--token=abc", "--lr", "0.1", "--seed", "1"]
    assert mask_values({"argv": words})["argv"] == [*words[:3], "***", "--token=***", *words[5:]]
    assert mask_values(["/usr/bin/curl", "-u", "me:abc", "x"]) == ["/usr/bin/curl", "-u", "me:***", "x"]
    assert mask_document("a.yaml", "args: [sh, mysql, -pabc]\n") == "args: [sh, mysql, -p***]\n"


def test_secrets_in_json_are_masked_by_their_keys() -> None:
    """Whatever stands in the value, escapes included."""
    raw = {"env": {"HF_TOKEN": 'a "b"', "n": 1}, "words": ['say "PASSWORD": "x y"']}
    assert mask_values(raw) == {"env": {"HF_TOKEN": "***", "n": 1}, "words": ['say "PASSWORD": "***"']}
