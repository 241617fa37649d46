"""JSON and YAML from outside are read within bounds, and what is beyond them is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make
from mslaunch.documents.yaml_text import MOST_VALUES, compose_yaml, construct_yaml, parse_yaml, write_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    # What other bytes of names become, lone surrogates in this range, is read too.
    | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\udc80\udcff")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(VALUES)
def test_json_that_python_wrote_is_read_as_it_was(value: Any) -> None:
    """Within the bounds nothing is lost."""
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested deeper than 100 levels"),
        ("[" * 102 + "]" * 102, "nested deeper than 100 levels"),
        ('{"a":' * 150 + "1" + "}" * 150, "nested deeper than 100 levels"),
        ("9" * 5000, "the number 999999999999… has 5000 digits"),
        ("1e999", "the number 1e999 is too large"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ('"\\ud800"', "not text in UTF-8"),
        (b"\xff", "not text in UTF-8"),
        ("{", "not JSON: Expecting property name"),
    ],
)
def test_json_beyond_the_bounds_is_refused(text: str | bytes, words: str) -> None:
    """Nesting, numbers, constants and text that cannot be written again."""
    with pytest.raises(Unreadable, match=words):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (BOMB, 5, f"it has more than {MOST_VALUES:,} values"),
        ("a: 1\nb: " + "[" * 100_000, 2, "nested deeper than 100 levels"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(200)), 101, "nested deeper than 100 levels"),
        ("a:\n" + "- 1\n" * 200_000, 99_999, "it has more than 100,000 values"),
        ("a: 1\nb: &x [1, *x]\n", 2, r"\*x stands inside the value that it names"),
        ("a: " + "1:" * 300_000 + "1", 1, "the number 1:1:1:1:1:1:… has 600001 characters"),
        ("a: " + "1:" * 300 + "1.5", 1, "the number 1:1:1:1:1:1:… has 603 characters"),
        ("a: " + "9" * 5000, 1, "the number 999999999999… has 5000 characters"),
        ("a: 1\nb: !!int ''\n", 2, "a value cannot be read"),
        ("a: 1\nb: !!bool x\n", 2, "a value cannot be read"),
        ("a: 1\nb: !!timestamp x\n", 2, "a value cannot be read"),
        ("a: 1\nb: 2001-99-99\n", 2, "a value cannot be read"),
        ("a: 1\nb: !!python/object/apply:os.system [x]\n", 2, "could not determine a constructor"),
        ("a: 1\n? [x]\n: 2\n", 2, "found unhashable key"),
        ("a: 1\nb: *none\n", 2, "found undefined alias"),
    ],
)
def test_yaml_beyond_the_bounds_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    """Before it is built: an alias bomb of 400 bytes would take gigabytes."""
    with pytest.raises(Unreadable, match=words) as error:
        parse_yaml(text)
    assert error.value.line == line


def test_anchors_and_merge_keys_work() -> None:
    """What people use aliases for stays possible."""
    text = "base: &b {lr: 1, steps: [1, 2]}\nmore:\n  <<: *b\n  lr: 2\nlist: [*b, *b]\n---\nsecond\n"
    first, second = (construct_yaml(node) for node in compose_yaml(text))
    assert first["more"] == {"lr": 2, "steps": [1, 2]}
    assert first["list"] == [first["base"]] * 2
    assert second == "second"


def test_a_file_of_any_length_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """Also one that says of itself that it is empty."""
    path = tmp_path / "f"
    path.write_text("x" * 100)
    assert read_text(path, 100) == "x" * 100
    with pytest.raises(Unreadable, match="larger than 1 MB"):
        read_text(Path("/dev/zero"), 1 << 20)
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(Unreadable, match="not text in UTF-8") as error:
        read_text(path)
    assert error.value.line == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("-2E5", -2e5), ("+1.e2", 100.0), ("'1e-3'", "1e-3"), ("1e", "1e"), ("e3", "e3")],
)
def test_numbers_with_an_exponent_are_numbers(text: str, value: Any) -> None:
    """Without a dot too, which YAML 1.1 wants; text that looks like one is written in quotes."""
    assert parse_yaml(text) == value
    written = write_yaml([value])
    assert parse_yaml(written) == yaml.safe_load(written) == value


@dataclass(frozen=True)
class Inner:
    number: int
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: Annotated[str, lambda text: None if text else "a name"]
    inner: tuple[Inner, ...]
    seconds: float = 0.0
    ends: tuple[int, int] | None = None
    files: Mapping[int, str] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)


def test_plain_values_become_dataclasses() -> None:
    """Lists become tuples, keys become numbers, what is unknown is left out and what is absent has its default."""
    raw = {"name": "n", "inner": [{"number": 1, "new": 2}], "ends": [1, 2], "files": {"3": "f"}, "later": 1}
    assert make(Outer, raw) == Outer("n", (Inner(1),), 0.0, (1, 2), {3: "f"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 1}, "^name: text is expected, got 1$"),
        ({"name": ""}, "^name: a name is expected, got ''$"),
        ({"inner": {}}, "^inner: a list is expected"),
        ({"inner": [{"number": 1}, {"number": True}]}, r"^inner\[1\].number: a whole number is expected, got True$"),
        ({"inner": [{"number": 1, "kind": "c"}]}, r"^inner\[0\].kind: one of a, b is expected"),
        ({"inner": [{"number": 1, "kind": []}]}, r"^inner\[0\].kind: one of a, b is expected"),
        ({"inner": [{}]}, r"^inner\[0\]: number is missing$"),
        ({"seconds": "1"}, "^seconds: a number is expected"),
        ({"ends": [1]}, "^ends: "),
        ({"files": {"x": "f"}}, "^files.x: a number in quotes is expected"),
        ({"name": "n" * 5000, "seconds": "s" * 5000}, "got 's{39}…$"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(change: Mapping[str, Any], words: str) -> None:
    """The place is written as in JSON, and a long value is cut."""
    with pytest.raises(Unreadable, match=words):
        make(Outer, {"name": "n", "inner": [], **change})


@pytest.mark.parametrize(
    ("text", "line", "column"), [('{"a": 1,\n}', 1, 8), ("[\n 1,\n 2 , ]", 3, 4), ('{"a": [1,],\n"b": 2}', 1, 9)]
)
def test_a_comma_before_a_closing_bracket_is_named_by_its_place(text: str, line: int, column: int) -> None:
    """In the same words whatever the version of Python."""
    with pytest.raises(Unreadable, match=r"a comma stands before the closing [}\]]") as caught:
        parse_json(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "t.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "t.json") == "{}"
