"""Sweeps in plans: how `--set` names several values, and which combinations they make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.errors import RequestError
from mslaunch.plan.combinations import axis_of, combine, parse_axis


def values(text: str) -> list[Any]:
    """What the runs of a sweep over one key see."""
    return [next(iter(one.values.values())) for one in combine([parse_axis(text)])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=0.1,0.01", [0.1, 0.01]),
        ("lr=1e-3, 1e-4", [0.001, 0.0001]),
        ("seed=1..3", [1, 2, 3]),
        ("seed=0..10..5", [0, 5, 10]),
        ("seed=3..1..-1", [3, 2, 1]),
        ("seed=-1..1,10", [-1, 0, 1, 10]),
        ("net=a", ["a"]),
        ("net='a,b',c", ["a,b", "c"]),
        ('net="a,b"', ["a,b"]),
        ("net='1..3'", ["1..3"]),
        ("net=it's,b's", ["it's", "b's"]),
        ("layers=[1,2],[3,4]", [[1, 2], [3, 4]]),
        ("opt={a: 1, b: 'x]'},null", [{"a": 1, "b": "x]"}, None]),
        ("flag=true,false", [True, False]),
        ("text='',x", ["", "x"]),
        ("formula=a=b,c=d", ["a=b", "c=d"]),
        ("v=1.5..2", ["1.5..2"]),
    ],
)
def test_values_are_lists_and_ranges(text: str, expected: list[Any]) -> None:
    """Quotes and brackets protect commas; each value is read as YAML, as in `train --set`."""
    assert values(text) == expected


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["lr"], "write it as key=value,value"),
        (["=1"], "write it as key=value,value"),
        (["lr="], "its value is empty"),
        (["lr=1,,2"], "a value is empty"),
        (["lr=1,"], "a value is empty"),
        (["lr='1,2"], "' is missing at its end"),
        (["lr=[1,2"], "] is missing at its end"),
        (["seed=3..1"], "the range 3..1 has no values. Write for example 1..3"),
        (["seed=1..3..-1"], "has no values. Write for example 1..3..1"),
        (["seed=1..3..0"], "step 0"),
        (["lr=1", "lr=2"], "lr: it is set twice"),
        (["lr=0.1,1e-1"], "0.1 stands there twice"),
        (["launch.run_id=a,b"], "it is the same for all runs of a sweep"),
        (["seed=1..1000000000000"], "1,000,000,000,000 combinations; a sweep has 10,000 at most"),
        (["a=1..101", "b=1..100"], "10,100 combinations"),
        ([], "nothing to sweep"),
    ],
)
def test_what_is_no_sweep_is_refused(texts: list[str], words: str) -> None:
    """One sentence with the fix, at once, whatever the number."""
    with pytest.raises(RequestError) as caught:
        combine([parse_axis(text) for text in texts])
    assert words in str(caught.value)


def test_the_last_key_changes_fastest_and_constants_are_not_shown() -> None:
    """The order is that of the command line; a label has what differs."""
    made = combine([parse_axis(text) for text in ("lr=0.1,0.01", "epochs=3", "seed=1..2")])
    assert [one.label for one in made] == ["lr=0.1 seed=1", "lr=0.1 seed=2", "lr=0.01 seed=1", "lr=0.01 seed=2"]
    assert made[0].values == {"lr": 0.1, "epochs": 3, "seed": 1}
    assert made[0].assignments == ("lr=0.1", "epochs=3", "seed=1")


def test_a_program_gives_lists_ranges_and_constants() -> None:
    """Anything that can be iterated over is several values, but for text and mappings."""
    axes = [axis_of("lr", [0.1, 1e-05]), axis_of("seed", range(2)), axis_of("net", "a,b"), axis_of("n", 1)]
    made = combine(axes)
    assert [tuple(one.values.values()) for one in made][-1] == (1e-05, 1, "a,b", 1)
    with pytest.raises(RequestError, match="'lr' has no values"):
        combine([axis_of("lr", [])])
    with pytest.raises(RequestError, match="values of 'lr'"):
        axis_of("lr", [object()])


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=5, unique=True), min_size=1, max_size=4))
def test_every_combination_is_there_once(some: list[list[int]]) -> None:
    """As many as the product says, all different, each with one value for every key."""
    made = combine([axis_of(f"k{at}", one) for at, one in enumerate(some)])
    chosen = {tuple(one.values.values()) for one in made}
    count = 1
    for one in some:
        count *= len(one)
    assert len(made) == len(chosen) == count
