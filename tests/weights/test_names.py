"""Rules for names: what they do to names and values, that they can be turned round, and what is wrong with one."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from mslaunch.errors import RequestError
from mslaunch.weights.diff import Files
from mslaunch.weights.names import READY, NameRule, apply_rules, compile_pattern, first_match, read_rules, reverse_rules
from mslaunch.weights.opening import Weights, open_weights
from tests.beds.sharded import write_shard

A = np.arange(24, dtype=np.int8).reshape(4, 6)
Arrays = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int8]]]


def opened(folder: Path, arrays: Arrays) -> Weights:
    content = {name: ("Int8", array.shape, array.tobytes()) for name, array in arrays.items()}
    return open_weights(write_shard(folder / "net.safetensors", content))


def values(weights: Weights) -> dict[str, list[object]]:
    with ExitStack() as stack:
        files = Files(stack)
        return {
            name: files.block(weight, tuple((0, size) for size in weight.shape)).tolist()
            for name, weight in weights.items()
        }


def rules_file(folder: Path, text: str) -> str:
    (folder / "rules.yaml").write_text(text)
    return str(folder / "rules.yaml")


RULES: dict[str, tuple[str, Arrays, Arrays]] = {
    "a name": (r"{from: 'a\.(\d+)\.w', to: 'b.\1.v'}", {"a.7.w": A, "other": A}, {"b.7.v": A, "other": A}),
    "several groups": (r"{from: '(\w+)\.(\d+)', to: '\2.\1'}", {"x.3": A}, {"3.x": A}),
    "transposed": ("{from: a, to: b, transpose: true}", {"a": A}, {"b": A.T}),
    "dimensions by number": (
        "{from: a, to: b, transpose: [1, 2, 0]}",
        {"a": A.reshape(2, 3, 4)},
        {"b": A.reshape(2, 3, 4).transpose(1, 2, 0)},
    ),
    "one more dimension": ("{from: a, to: b, insert: 1}", {"a": A}, {"b": A[:, None]}),
    "one dimension less": ("{from: a, to: b, remove: 1}", {"a": A[:, None]}, {"b": A}),
    "put together": (
        r"{from: ['(.*)\.q', '\1.k', '\1.v'], to: '\1.qkv', concat: 0}",
        {"x.k": A + 1, "x.q": A, "x.v": A + 2},
        {"x.qkv": np.concatenate([A, A + 1, A + 2])},
    ),
    "put together side by side": (
        "{from: [a, b], to: c, concat: 1, sizes: [2, 1]}",
        {"a": A[:, :4], "b": A[:, 4:]},
        {"c": A},
    ),
    "cut": ("{from: c, to: [a, b], split: 0}", {"c": A}, {"a": A[:2], "b": A[2:]}),
    "cut side by side": ("{from: c, to: [a, b], split: 1, sizes: [1, 2]}", {"c": A}, {"a": A[:, :2], "b": A[:, 2:]}),
    "cut after transposing": (
        "{from: c, to: [a, b], split: 0, transpose: true}",
        {"c": A},
        {"a": A.T[:3], "b": A.T[3:]},
    ),
    "copied": ("{from: a, to: [b, c], copy: true, transpose: true}", {"a": A}, {"b": A.T, "c": A.T}),
    "stacked": (
        r"{from: 'l\.(\d+)\.e\.(\d+)\.w', to: 'l.\1.w', stack: 0}",
        {f"l.{layer}.e.{number}.w": A + number for layer in (3, 4) for number in (10, 2, 0, *range(3, 10), 1)},
        {f"l.{layer}.w": np.stack([A + number for number in range(11)]) for layer in (3, 4)},
    ),
    "stacked and transposed": (
        r"{from: 'e\.(\d+)', to: w, stack: 1, transpose: true}",
        {"e.1": A + 1, "e.0": A},
        {"w": np.stack([A.T, A.T + 1], 1)},
    ),
    "heads": (
        "{from: a, to: b, heads: {head_dim: 4, from: halves, to: pairs}}",
        {"a": A.reshape(8, 3)},
        {"b": A.reshape(2, 2, 2, 3).transpose(0, 2, 1, 3).reshape(8, 3)},
    ),
}


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_does_what_it_says_and_can_be_turned_round(tmp_path: Path, kind: str) -> None:
    """Names and values are those that NumPy makes, and the way back restores both."""
    text, before, after = RULES[kind]
    rules = read_rules(rules_file(tmp_path, f"rules:\n  - {text}\n"))
    made = apply_rules(opened(tmp_path, before), rules)
    assert values(made) == {name: array.tolist() for name, array in after.items()}
    back = apply_rules(made, reverse_rules(rules))
    assert values(back) == {name: array.tolist() for name, array in before.items()}


def test_what_is_dropped_is_left_out(tmp_path: Path) -> None:
    """Without a word, since the rule says so."""
    rules = read_rules(rules_file(tmp_path, r"rules: [{drop: '.*\.inv_freq'}]"))
    assert list(apply_rules(opened(tmp_path, {"a.inv_freq": A, "b": A}), rules)) == ["b"]


WRONG = {
    "no rules": ("names: []", "has no list `rules`"),
    "not YAML": ("rules: [", "rules.yaml:"),
    "no from": ("rules: [{to: b}]", "rule 1: needs `from` and `to`, or `drop`"),
    "a wrong key": ("rules: [{from: a, to: b, transposed: true}]", "did you mean 'transpose'"),
    "a number": ("rules: [{from: 1, to: b}]", "are names, got '1'"),
    "several without concat": ("rules: [{from: [a, b], to: c}]", "several in `from` need `concat: DIMENSION`"),
    "several to several": ("rules: [{from: [a, b], to: [c, d], concat: 0, split: 0}]", "one becomes several"),
    "two changes": ("rules: [{from: a, to: b, transpose: true, insert: 0}]", "one of transpose, insert"),
    "wrong heads": ("rules: [{from: a, to: b, heads: 3}]", "write heads: {head_dim: 128"),
    "odd heads": ("rules: [{from: a, to: b, heads: {head_dim: 3, from: halves, to: pairs}}]", "an even number"),
    "a bad expression": ("rules: [{from: 'a(', to: b}]", "rule 1: 'a(' is not a regular expression: missing )"),
    "a repetition too large": ("rules: [{from: 'a{99999999999}', to: b}]", "the repetition number is too large"),
    "groups too deep": (f"rules: [{{drop: '{'(' * 5000}'}}]", "…' is not a regular expression: maximum recursion"),
    "copied and cut": ("rules: [{from: a, to: [b, c], split: 0, copy: true}]", "one of concat, split, stack and"),
    "not copied": ("rules: [{from: a, to: [b, c], copy: false}]", "one of concat, split, stack and `copy: true`"),
    "stacked without a number": ("rules: [{from: a, to: b, stack: 0}]", "`stack` needs one group in `from` that `to`"),
    "stacked with two": (r"rules: [{from: '(a)(b)', to: c, stack: 0}]", "which is the number; 2 are unused"),
    "stacked to nothing": ("rules: [{drop: 'a(b)', stack: 0}]", "`stack` needs `from` and `to`"),
    "wrong sizes": ("rules: [{from: a, to: [b, c], split: 0, sizes: [1]}]", "`sizes` are the proportions"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_of_rules_is_refused(tmp_path: Path, kind: str) -> None:
    """In one sentence that names the rule."""
    text, words = WRONG[kind]
    with pytest.raises(RequestError) as refused:
        read_rules(rules_file(tmp_path, text))
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


IMPOSSIBLE = {
    "a group too many": (r"{from: a, to: '\1'}", "cannot be filled in"),
    "a group's number of 5,000 digits": (rf"{{from: a, to: '\g<{'9' * 5000}>'}}", "cannot be filled in"),
    "two of one name": (r"{from: '\w', to: x}", "x: a and b would both get this name"),
    "a part that is not there": ("{from: [a, zz], to: c, concat: 0}", "zz is not there to be put together with a"),
    "unequal parts": ("{from: [a, b], to: c, concat: 1}", "the parts of c have the sizes [6, 3]. Give `sizes`"),
    "shapes that do not fit": ("{from: [a, b], to: c, concat: 0}", "cannot be put together in dimension 0"),
    "no such dimension": ("{from: a, to: [x, y], split: 5}", "has no dimension 5"),
    "a dimension that is not 1": ("{from: a, to: x, remove: 0}", "is not 1 and cannot be removed"),
    "a cut that is uneven": ("{from: b, to: [x, y], split: 1}", "cannot be cut as [1, 1]"),
    "a transposition of others": ("{from: a, to: x, transpose: [0, 1, 2]}", "cannot be transposed to [0, 1, 2]"),
    "a number that is missing": (r"{from: 'a(.*)', to: x, stack: 0}", "a is there and a0 is not; `stack` needs all"),
    "no heads": ("{from: a, to: x, heads: {head_dim: 8, from: halves, to: pairs}}", "has no heads of 8 rows"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_rule_that_cannot_be_applied_is_refused(tmp_path: Path, kind: str) -> None:
    """With the rule or the parameter."""
    text, words = IMPOSSIBLE[kind]
    weights = opened(tmp_path, {"a": A, "b": A[:, :3]})
    rules = read_rules(rules_file(tmp_path, f"rules:\n  - {text}\n"))
    with pytest.raises(RequestError) as refused:
        apply_rules(weights, rules)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", [r"a\d+\.(\w+)", "(a|b)(c)", "a.*", "((a)b)"])
def test_a_rule_without_a_way_back_is_refused_on_export(tmp_path: Path, text: str) -> None:
    """What stands outside of groups, or in one that is not used, is lost."""
    rules = read_rules(rules_file(tmp_path, rf"rules: [{{from: '{text}', to: 'x'}}]"))
    with pytest.raises(RequestError, match="cannot be turned round for the way back"):
        reverse_rules(rules)


@pytest.mark.parametrize("rule", [r"{from: '(a)', to: 'x\3'}", r"{from: ['(a)', 'b\2'], to: 'x\1', concat: 0}"])
def test_a_group_that_the_rule_does_not_have_is_refused_on_export(tmp_path: Path, rule: str) -> None:
    """One group is there and one is used, but it is another."""
    rules = read_rules(rules_file(tmp_path, f"rules: [{rule}]"))
    with pytest.raises(RequestError, match="cannot be turned round for the way back"):
        reverse_rules(rules)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)x"])
def test_an_expression_that_would_not_end_is_refused(tmp_path: Path, pattern: str) -> None:
    """The rule and the name are told; the timer is the caller's again."""
    weights = opened(tmp_path, {"a" * 100 + "!": A})
    rules = read_rules(rules_file(tmp_path, f"rules: [{{from: z, to: y}}, {{from: '{pattern}', to: c}}]"))
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(RequestError, match=r"rules.yaml, rule 2: its regular expression took more than 0.2 s for 'aaa"):
        apply_rules(weights, rules)
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_rules_are_applied_in_any_thread(tmp_path: Path) -> None:
    """Signals are the main thread's: in others there is no limit of time, and no error."""
    weights = opened(tmp_path, {"a": A})
    rules = read_rules(rules_file(tmp_path, "rules: [{from: a, to: b}]"))
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.submit(apply_rules, weights, rules).result()) == ["b"]


def test_an_unknown_network_is_refused_with_the_known_ones() -> None:
    """As a wrong word is elsewhere."""
    with pytest.raises(RequestError) as refused:
        read_rules("lama")
    assert str(refused.value) == (
        "--names lama: no such file or network; did you mean 'llama'? "
        "Known networks: bert, gpt2, llama, qwen, resnet; none keeps all names."
    )


@pytest.mark.parametrize("path", sorted(READY.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_ready_rules_can_be_turned_round(path: Path) -> None:
    """They are read by their name, and serve export too."""
    assert reverse_rules(read_rules(path.stem))


def test_each_of_many_rules_is_compiled_once() -> None:
    """All are tried for every name, so the next name must not begin anew."""
    rules = [NameRule(f"rule {number}", (f"many{number}",), ("x",)) for number in range(5000)]
    for rule in rules:  # as reading a file of rules does
        assert rule.match("none of them") is None
    before = compile_pattern.cache_info().misses
    for _ in range(2):
        assert first_match(rules, "none of them") is None
    assert compile_pattern.cache_info().misses == before
