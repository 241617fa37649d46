"""docs/api.md: its examples run, and it names everything that is public."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import mslaunch
from mslaunch.run.record import RankRecord
from tests.conftest import ROOT, Bench

PATH = ROOT / "docs" / "api.md"
TEXT = PATH.read_text()
NEEDS_HOSTS = "# needs hosts\n"
EVENTS = (
    mslaunch.RankStarted,
    mslaunch.RankJoined,
    mslaunch.RankProgress,
    mslaunch.RankFailed,
    mslaunch.RankEnded,
    mslaunch.Restarted,
    mslaunch.RunEnded,
)


def blocks() -> list[ast.Module]:
    """Every example, with the lines that it has in the document; those that need hosts are parsed only."""
    found = []
    for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        module = ast.parse(match[1], str(PATH))
        ast.increment_lineno(module, TEXT[: match.start()].count("\n") + 1)
        if not match[1].startswith(NEEDS_HOSTS):
            found.append(module)
    return found


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def public_members(owner: type) -> set[str]:
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    return fields | {name for name in vars(owner) if not name.startswith("_")}


def documented(text: str) -> set[str]:
    """The names that code markup begins with: `wait(timeout=None)` is wait."""
    return set(re.findall(r"`(\w+)[^`\n]*`", text))


def test_the_examples_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one folder and one namespace, as a reader would type them."""
    pytest.importorskip("cloudpickle")
    monkeypatch.chdir(bench.folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = blocks()
    assert len(found) > 8
    for block in found:
        exec(compile(block, str(PATH), "exec"), namespace)
    assert "cfg.yaml" in {path.name for path in Path().iterdir()}


def test_every_public_name_is_documented() -> None:
    """docs/api.md has every name of mslaunch."""
    assert set(mslaunch.__all__) <= documented(TEXT)


@pytest.mark.parametrize(
    ("owner", "heading"),
    [
        (mslaunch.Job, "Job"),
        (mslaunch.Run, "Run"),
        (mslaunch.Result, "Result"),
        (RankRecord, "Result"),
        (mslaunch.Verdict, "Verdict"),
        *((event, "Events") for event in EVENTS),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_public_member_is_documented(owner: type, heading: str) -> None:
    """In the section of its class."""
    assert public_members(owner) <= documented(section(heading))


@pytest.mark.parametrize("event", EVENTS)
def test_the_table_of_events_has_their_fields_in_order(event: type) -> None:
    """The row of an event is its signature."""
    fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(event))
    assert f"| `{event.__name__}` | {fields} |" in section("Events")


def test_the_signatures_are_those_of_the_code() -> None:
    """Names and order of parameters."""
    assert "`Job(script=None, *, config=None, args=(), values=None, **settings)`" in TEXT
    defaults = mslaunch.Job.__init__.__kwdefaults__
    assert defaults == {"config": None, "args": (), "values": None}
    assert mslaunch.launch.__kwdefaults__ == {"workers": 1, "settings": None}


def test_every_public_name_exists() -> None:
    """A name is loaded when it is first used; another one is refused."""
    assert all(getattr(mslaunch, name) is not None for name in mslaunch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mslaunch.nothing  # type: ignore[attr-defined]
