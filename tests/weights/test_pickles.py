"""Pickles of strangers: read as descriptions, and whatever is no tensor or container is refused by its name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mslaunch.errors import RequestError
from mslaunch.weights.opening import open_weights
from tests.beds.torch_files import Call, Global, Persistent, Raw, Saved, instructions, pickled, save_older, save_zip
from tests.conftest import Bench

GETATTR = Global("builtins.getattr")
TOUCH = ("touch marker",)


class Runs:
    """An object whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, TOUCH


def deep(opening: bytes, closing: bytes, times: int) -> Raw:
    return Raw(opening * times + b"N" + closing * times)


def multiply(opening: bytes, entries: Callable[[bytes], bytes], closing: bytes, first: Any = None) -> Raw:
    """Containers of containers, each of which names the one before ten times."""
    steps = [opening + entries(bytes([ord("h"), n])) + closing + bytes([ord("q"), n + 1]) + b"0" for n in range(60)]
    return Raw(instructions(first or {}) + b"q\x000" + b"".join(steps) + b"h\x3c")


def ten_keys(value: bytes) -> bytes:
    return b"".join(b"K" + bytes([key]) + value for key in range(10))


CALL_AGAIN = b"ccollections\nOrderedDict\nh\x00\x85R0"
MALICIOUS: dict[str, tuple[Any, str]] = {
    "os.system": (Call(Global("os.system"), TOUCH), "'os.system'"),
    "posix.system, as pickle writes it": (pickle.dumps({"w": Runs()}, 2), "'posix.system'"),
    "in protocol 4, by the stack": (pickle.dumps({"w": Runs()}, 4), "'posix.system'"),
    "in protocol 0, as text": (pickle.dumps({"w": Runs()}, 0), "'posix.system'"),
    "eval": (Call(Global("builtins.eval"), ("open('marker', 'w')",)), "'builtins.eval'"),
    "exec of Python 2": (Call(Global("__builtin__.exec"), ("open('marker', 'w')",)), "'__builtin__.exec'"),
    "subprocess": (Call(Global("subprocess.Popen"), (["touch", "marker"],)), "'subprocess.Popen'"),
    "getattr chain": (
        Call(Call(GETATTR, (Call(Global("builtins.__import__"), ("os",)), "system")), TOUCH),
        "'builtins.getattr'",
    ),
    "a call of what a call returned": (Call(Call(Global("collections.OrderedDict")), TOUCH), "calls a dict"),
    "nested reduce": (
        Call(Global("torch._utils._rebuild_parameter"), (Call(Global("os.system"), TOUCH), True, None)),
        "'os.system'",
    ),
    "a name of torch that runs code": (Call(Global("torch.hub.load"), ("a", "b")), "'torch.hub.load'"),
    "a name with dots through a class": (Call(Global("torch.Size.__class__"), ()), "'torch.Size.__class__'"),
    "an instance": (Raw(b"(ios\nsystem\n"), "'os.system'"),
    "an object by its class": (Raw(b"(cos\nsystem\nX\x01\x00\x00\x00ao"), "'os.system'"),
    "a new object": (Raw(b"ctorch\nSize\n)\x81"), "makes an object of torch.Size"),
    "attributes": (Raw(b"ctorch\nSize\n}b"), "sets attributes of torch.Size"),
    "an extension": (Raw(b"\x82\x01"), "EXT1"),
    "numpy's reconstruct": (
        Call(Global("numpy.core.multiarray._reconstruct"), (Global("numpy.ndarray"), (0,), "b")),
        "w is numpy.core.multiarray._reconstruct",
    ),
    "a storage of another kind": (Persistent(("module", Global("torch.FloatStorage"), "a", "b", 1)), "no storage"),
    "a storage that is an import": (Persistent(("storage", "os.system", "a", "b", 1)), "without type or key"),
    "a huge tuple": (Raw(b"(" + b"N" * 5_000_000 + b"t"), "instructions"),
    "a long list that is read again and again": (
        Raw(instructions([(n, n) for n in range(2000)]) + b"q\x00" + CALL_AGAIN * 1000),
        "instructions",
    ),
    "a list in lists": (Raw(b"]" * 100_000 + b"a" * 99_999), "no tensor"),
    "dicts around a large one": (
        Raw(instructions({n: n for n in range(9000)}) + b"q\x000(" + b"(K\x00h\x00d" * 9000 + b"l"),
        "no tensor",
    ),
    "recursion by marks": (deep(b"(", b"t", 100_000), "nested deeper"),
    "a deep tuple as a key": (Raw(b"}" + b"N" + b"\x85" * 100_000 + b"Ns"), "a key that is a tuple"),
    "a text that is announced and missing": (Raw(b"X\xff\xff\xff\x7fab"), "cannot be read"),
    "a shape of text": (
        Call(Global("torch._utils._rebuild_tensor_v2"), (Saved("0", "Int8", (1,)).call().arguments[0], 0, "ab", (1,))),
        "a shape that is no tuple",
    ),
    "too few arguments": (Call(Global("torch._utils._rebuild_tensor_v2"), ()), "cannot be read"),
    "values that are not there": (Raw(b"R"), "cannot be read"),
    "lists that multiply": (multiply(b"(", lambda value: value * 10, b"l"), "no tensor"),
    "dicts that multiply": (multiply(b"(", ten_keys, b"d"), "no tensor"),
    "dicts that multiply a tensor": (multiply(b"(", ten_keys, b"d", {"t": Saved("0", "Int8", (1,))}), "nested deeper"),
}


@pytest.mark.parametrize("kind", MALICIOUS)
@pytest.mark.parametrize("older", [False, True], ids=["zip", "older"])
def test_a_malicious_pickle_is_refused_by_name(bench: Bench, kind: str, older: bool) -> None:
    """One sentence with the name; nothing of it is imported or run, and nothing is written."""
    value, words = MALICIOUS[kind]
    data = value if isinstance(value, bytes) else pickled({"w": value})
    path = bench.folder / "bad.pth"
    if older:
        save_older(path, Raw(data[:-1] if data[:1] != b"\x80" else data[2:-1]), {"0": (1, b"a")})
    else:
        save_zip(path, data, {"0": b"a"})
    with pytest.raises(RequestError, match="not a state_dict that can be read") as refused:
        open_weights(path)
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert [file.name for file in bench.folder.iterdir()] == ["bad.pth"]


def test_the_command_tells_it_in_one_line(bench: Bench) -> None:
    """Exit code 2, no traceback, no new file."""
    save_zip(bench.folder / "bad.pth", pickle.dumps(Runs(), 2), {})
    done = bench.mslaunch("ckpt", "import", "bad.pth", "--to", "net.ckpt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "mslaunch: bad.pth: not a state_dict that can be read: its pickle names 'posix.system', "
        "which is no tensor, storage or container. "
        "If you trust the file, load it in PyTorch and save only model.state_dict().\n"
    )
    assert [file.name for file in bench.folder.iterdir()] == ["bad.pth"]


def test_a_pickle_that_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    """It says what to save instead."""
    with pytest.raises(RequestError, match=r"holds no state_dict. Save model.state_dict\(\) with torch.save"):
        open_weights(save_zip(tmp_path / "a.pth", [1, 2], {}))


def test_the_writer_of_these_tests_makes_pickles_that_python_reads() -> None:
    """Else the refusals above would show nothing."""
    value = {"a": (1, -300, 1 << 70), "b": [None, True, False, "ü"]}
    assert pickle.loads(pickled(value)) == value
    assert instructions("a") == b"X\x01\x00\x00\x00a"
