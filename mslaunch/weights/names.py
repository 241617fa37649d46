"""Rules that map the names of one framework to those of the other, from a YAML file; each can be reversed."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

from mslaunch.checkpoint.moving import weights as change
from mslaunch.checkpoint.moving.weights import Weight
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import RequestError, did_you_mean

NUMBER = "\1"
"""Stands for the number in a template of the way back."""
_MOST = 10_000


def numbered_names(where: str, match: re.Match[str], group: int, parameters: Container[str]) -> list[str]:
    """Return the names of all numbers from 0 on, for one of them; none may be missing before it."""
    since, to = match.span(group)
    name, names = match[0], list[str]()
    while len(names) < _MOST and (candidate := f"{name[:since]}{len(names)}{name[to:]}") in parameters:
        names.append(candidate)
    if name not in names:
        missing = f"{name[:since]}{len(names)}{name[to:]}"
        raise RequestError(f"{where}: {name} is there and {missing} is not; `stack` needs all numbers from 0 on.")
    return names


def unstack(where: str, weight: Weight, axis: int, template: str) -> list[Weight]:
    """Cut a dimension into its places; NUMBER in the template becomes the number of each."""
    count = weight.shape[axis] if axis < len(weight.shape) else 0
    if not 0 < count <= _MOST:
        raise RequestError(f"{where}: {weight.name} ({weight.words()}) has no dimension {axis} that can be unstacked.")
    names = [template.replace(NUMBER, str(number)) for number in range(count)]
    return [change.remove_dimension(part, axis) for part in change.split(weight, axis, (1,) * count, names)]


LONGEST_MATCH = 0.2
_SHOWN = 60


class TookLong(Exception):
    """A regular expression would take long to find out whether it matches."""


@cache  # a file of rules, whose size is limited, is gone through again for every name
def compile_pattern(where: str, text: str) -> re.Pattern[str]:
    """Compile an expression; `where` is its place, for the message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        excerpt = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise RequestError(f"{where}: {excerpt!r} is not a regular expression: {error}.") from None


@contextmanager
def limited_matching() -> Iterator[None]:
    """Raise TookLong where matching takes long: Python looks for signals while it matches, so that a timer ends it.

    Signals reach the main thread alone; in others there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _give_up)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_MATCH)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TookLong


READY = Path(__file__).parent / "rules"
"""Rules that come with mslaunch, by the name of the network."""
KEEP = "none"
_KEYS = ("from", "to", "drop", "transpose", "insert", "remove", "concat", "split", "sizes", "heads", "copy", "stack")
_HEADS = ("halves", "pairs")
_GROUP = re.compile(r"\((?!\?)[^()]*\)")
_REFERENCE = re.compile(r"\\(\d)")
_SPECIAL = re.compile(r"(?<!\\)[()\[\]{}*+?|^$]|\\[A-Za-z]")


@dataclass(frozen=True, slots=True)
class NameRule:
    """One row: which names, what they become, and what is done to the values on the way."""

    where: str
    sources: tuple[str, ...]
    """The first is a regular expression; the others are templates that use its groups."""
    targets: tuple[str, ...]
    """Templates; none where the parameter is left out."""
    transpose: tuple[int, ...] | None = None
    insert: int | None = None
    remove: int | None = None
    axis: int = 0
    """The dimension that is cut, or in which several are put together."""
    sizes: tuple[int, ...] = ()
    """Their proportions; equal where none are given."""
    head_dim: int = 0
    heads: tuple[str, str] | None = None
    """From which order of the rows of a head to which."""
    copy: bool = False
    """Each target gets all values; on the way back, they come from the first."""
    stack: int | None = None
    """The new dimension in which parameters with numbers are put together."""
    number: int = 0
    unstack: int | None = None
    """The dimension that is cut into parameters with numbers."""

    def match(self, name: str) -> re.Match[str] | None:
        return compile_pattern(self.where, self.sources[0]).fullmatch(name)

    def reverse(self) -> NameRule:
        """The rule that undoes this one, which has targets."""
        groups = _GROUP.findall(self.sources[0])
        outside = _GROUP.sub("", self.sources[0])
        used = set(_REFERENCE.findall(self.targets[0]))
        needed = {str(number) for number in range(1, len(groups) + 1)} - {str(self.number)}
        others = set(_REFERENCE.findall(" ".join((*self.sources[1:], *self.targets[1:]))))
        if _SPECIAL.search(outside) or used != needed or others - needed:
            raise RequestError(
                f"{self.where}: cannot be turned round for the way back: write plain text and groups in `from`, and "
                f"use every group in the first `to`."
            )
        numbers = iter(range(1, len(groups) + 1))
        template = re.sub(r"\\(.)", r"\1", _GROUP.sub(lambda _: f"\0{next(numbers)}", self.sources[0]))
        order = _REFERENCE.findall(self.targets[0])
        new = {old: f"\\{order.index(old) + 1}" for old in needed} | {str(self.number): NUMBER}
        pattern = "".join(
            re.escape(text) if index % 2 == 0 else groups[int(text) - 1]
            for index, text in enumerate(_REFERENCE.split(self.targets[0]))
        )
        back = [re.sub("\0(\\d)", lambda reference: new[reference[1]], template)]
        back += [_REFERENCE.sub(lambda reference: new[reference[1]], text) for text in self.sources[1:]]
        more = [_REFERENCE.sub(lambda reference: new[reference[1]], text) for text in self.targets[1:]]
        transpose, heads = self.transpose, self.heads
        if transpose is not None:
            transpose = tuple(transpose.index(axis) for axis in range(len(transpose)))
        if heads is not None:
            heads = (heads[1], heads[0])
        return replace(
            self,
            sources=(pattern, *more),
            targets=tuple(back),
            transpose=transpose,
            insert=self.remove,
            remove=self.insert,
            heads=heads,
            stack=None,
            number=0,
            unstack=self.stack,
        )


def is_ready(name: str) -> bool:
    """Tell whether rules of this name come with mslaunch; a file of that name comes first."""
    path = Path(name)
    return not path.exists() and "/" not in name and not path.suffix and (READY / f"{name}.yaml").exists()


def read_rules(name: str) -> list[NameRule]:
    """Read a file of rules, or those that come with mslaunch for a network; `none` keeps all names."""
    path = READY / f"{name}.yaml" if is_ready(name) else Path(name)
    if not path.exists():
        if name == KEEP:
            return []
        networks = sorted(ready.stem for ready in READY.glob("*.yaml"))
        near = did_you_mean(name, networks) or "."
        listed = ", ".join(networks)
        raise RequestError(
            f"--names {name}: no such file or network{near} Known networks: {listed}; {KEEP} keeps all names."
        )
    from mslaunch.documents.yaml_text import parse_yaml

    try:
        raw = parse_yaml(read_text(path, only_files=True))
    except Unreadable as error:
        raise RequestError(f"{error.where(name)}: {error}. Write `rules:` and a list of from and to.") from None
    except OSError as error:
        raise RequestError(f"{name}: cannot be read: {error.strerror or error}.") from None
    rows = raw.get("rules") if isinstance(raw, dict) else None
    if not isinstance(rows, list):
        raise RequestError(f"{name}: has no list `rules`. Write `rules:` and below it a list of from and to.")
    return [_rule(f"{name}, rule {number}", row) for number, row in enumerate(rows, 1)]


def _rule(where: str, row: Any) -> NameRule:
    if not isinstance(row, dict) or not row.keys() & {"from", "drop"}:
        raise RequestError(f"{where}: needs `from` and `to`, or `drop`.")
    for key in row:
        if key not in _KEYS:
            raise RequestError(f"{where}: has no key {key!r}{did_you_mean(str(key), _KEYS)}")
    sources = _texts(where, row.get("from", row.get("drop")))
    targets = _texts(where, row["to"]) if "to" in row else ()
    _check_counts(where, row, sources, targets)
    if len(row.keys() & {"transpose", "insert", "remove", "heads"}) > 1:
        raise RequestError(f"{where}: one of transpose, insert, remove and heads is possible in a rule, not several.")
    sizes = _numbers(where, row.get("sizes", []))
    if sizes and (len(sizes) != max(len(sources), len(targets)) or min(sizes) < 1):
        raise RequestError(f"{where}: `sizes` are the proportions of the parts, one from 1 on for each.")
    groups = compile_pattern(where, sources[0]).groups
    transpose = row.get("transpose")
    if transpose is True:
        transpose = []
    stack, number = _number(where, row.get("stack")), 0
    if stack is not None:
        used = set(_REFERENCE.findall(targets[0]))
        unused = [group for group in range(1, groups + 1) if str(group) not in used]
        if len(unused) != 1:
            raise RequestError(
                f"{where}: `stack` needs one group in `from` that `to` does not use, which is the number; "
                f"{len(unused)} are unused."
            )
        number = unused[0]
    head_dim, heads = _heads(where, row.get("heads"))
    return NameRule(
        where,
        sources,
        targets,
        None if transpose in (None, False) else _numbers(where, transpose),
        _number(where, row.get("insert")),
        _number(where, row.get("remove")),
        _number(where, row.get("concat", row.get("split"))) or 0,
        sizes,
        head_dim,
        heads,
        "copy" in row,
        stack,
        number,
    )


def _check_counts(where: str, row: Mapping[str, Any], sources: tuple[str, ...], targets: tuple[str, ...]) -> None:
    if bool(targets) == ("drop" in row) or not sources or (len(sources) > 1 and len(targets) > 1):
        raise RequestError(f"{where}: one name or several become one, or one becomes several; or it is a `drop`.")
    if (len(sources) > 1) != ("concat" in row) or (len(targets) > 1) != bool(row.keys() & {"split", "copy"}):
        raise RequestError(
            f"{where}: several in `from` need `concat: DIMENSION`, several in `to` `split: DIMENSION` or `copy: true`."
        )
    if len(row.keys() & {"split", "copy", "stack", "concat"}) > 1 or row.get("copy", True) is not True:
        raise RequestError(f"{where}: one of concat, split, stack and `copy: true` is possible in a rule, not several.")
    if not targets and "stack" in row:
        raise RequestError(f"{where}: `stack` needs `from` and `to`.")


def _texts(where: str, value: Any) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"{where}: `from`, `to` and `drop` are names, got {str(value)[:40]!r}.")
    return tuple(texts)


def _number(where: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value <= 64):
        raise RequestError(f"{where}: a dimension is a number from 0 on, got {str(value)[:40]!r}.")
    return value


def _numbers(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int and number >= 0 for number in value):
        raise RequestError(f"{where}: a list of numbers is wanted, got {str(value)[:40]!r}.")
    return tuple(value)


def _heads(where: str, value: Any) -> tuple[int, tuple[str, str] | None]:
    if value is None:
        return 0, None
    is_complete = isinstance(value, dict) and value.keys() == {"head_dim", "from", "to"}
    if not is_complete or {value["from"], value["to"]} != set(_HEADS) or type(value["head_dim"]) is not int:
        raise RequestError(f"{where}: write heads: {{head_dim: 128, from: halves, to: pairs}}, or the other way round.")
    if value["head_dim"] < 2 or value["head_dim"] % 2:
        raise RequestError(f"{where}: head_dim is an even number, got {value['head_dim']}.")
    return value["head_dim"], (value["from"], value["to"])


def reverse_rules(rules: Sequence[NameRule]) -> list[NameRule]:
    """Return rules for the way back; those that leave out come last, since one may name what another makes."""
    return [*(rule.reverse() for rule in rules if rule.targets), *(rule for rule in rules if not rule.targets)]


def apply_rules(weights: Mapping[str, Weight], rules: Sequence[NameRule]) -> dict[str, Weight]:
    """Apply to each name the first rule that matches it; a name that none matches stays."""
    made: dict[str, Weight] = {}
    came_from: dict[str, str] = {}
    used: set[str] = set()
    for name, weight in weights.items():
        if name in used:
            continue
        match = first_match(rules, name)
        new = list(_apply(*match, weights, used)) if match else [weight]
        for renamed in new:
            if renamed.name in made:
                both = f"{came_from[renamed.name]} and {name}"
                raise RequestError(f"{renamed.name}: {both} would both get this name. Correct the rules.")
            made[renamed.name], came_from[renamed.name] = renamed, name
    for name in used & made.keys():
        if made[name] is weights[name]:  # it came before the one that it is put together with
            del made[name]
    return made


def first_match(rules: Sequence[NameRule], name: str) -> tuple[NameRule, re.Match[str]] | None:
    """Return the first rule that matches a name, and how; one that takes too long to tell is refused."""
    rule = None
    try:
        with limited_matching():
            for rule in rules:
                if match := rule.match(name):
                    return rule, match
    except TookLong:
        where = rule.where if rule else "the rules"
        raise RequestError(
            f"{where}: its regular expression took more than {LONGEST_MATCH} s for {name[:60]!r}. Write a simpler "
            f"one, without repetitions inside repetitions."
        ) from None
    return None


def _apply(rule: NameRule, match: re.Match[str], weights: Mapping[str, Weight], used: set[str]) -> Iterator[Weight]:
    names = [expand(rule, match, template) for template in rule.targets]
    if not names:
        return
    if rule.stack is not None:
        numbered = numbered_names(rule.where, match, rule.number, weights)
        used.update(numbered)
        parts = [change.insert_dimension(_changed(rule, weights[part]), rule.stack) for part in numbered]
        yield change.concat(parts, rule.stack, names[0])
        return
    if rule.unstack is not None:
        for part in unstack(rule.where, weights[match[0]], rule.unstack, names[0]):
            yield _changed(rule, part)
        return
    sources = [match[0], *(expand(rule, match, template) for template in rule.sources[1:])]
    if rule.copy:
        used.update(sources[1:])
        whole = _changed(rule, weights[sources[0]])
        yield from (change.rename(whole, name) for name in names)
        return
    missing = [part for part in sources if part not in weights]
    if missing:
        raise RequestError(f"{rule.where}: {missing[0]} is not there to be put together with {match[0]}.")
    used.update(sources[1:])
    whole = weights[sources[0]]
    if len(sources) > 1:
        sizes = [weights[part].shape[rule.axis : rule.axis + 1] for part in sources]
        ratios = rule.sizes or (1,) * len(sources)
        if any(size[0] * ratios[0] != sizes[0][0] * ratio for size, ratio in zip(sizes, ratios, strict=True) if size):
            lengths = list(chain.from_iterable(sizes))
            raise RequestError(
                f"{rule.where}: the parts of {names[0]} have the sizes {lengths}. Give `sizes` for them."
            )
        whole = change.concat([weights[part] for part in sources], rule.axis, names[0])
    whole = _changed(rule, whole)
    if len(names) > 1:
        yield from change.split(whole, rule.axis, rule.sizes or (1,) * len(names), names)
    else:
        yield change.rename(whole, names[0])


def expand(rule: NameRule, match: re.Match[str], template: str) -> str:
    """Fill in a template with the groups of a match."""
    try:
        return match.expand(template)
    except (re.error, IndexError, ValueError, OverflowError) as error:
        raise RequestError(f"{rule.where}: {template!r} cannot be filled in: {error}.") from None


def _changed(rule: NameRule, weight: Weight) -> Weight:
    if rule.transpose is not None:
        weight = change.transpose(weight, rule.transpose)
    if rule.remove is not None:
        weight = change.remove_dimension(weight, rule.remove)
    if rule.insert is not None:
        weight = change.insert_dimension(weight, rule.insert)
    if rule.heads is not None:
        weight = change.reorder_rows(weight, _head_order(rule, weight))
    return weight


def _head_order(rule: NameRule, weight: Weight) -> list[int]:
    """Which row stands where: the two halves of a head, or its pairs, are what rotates together."""
    if not weight.shape or weight.shape[0] % rule.head_dim:
        raise RequestError(f"{rule.where}: {weight.name} ({weight.words()}) has no heads of {rule.head_dim} rows.")
    half = rule.head_dim // 2
    inner = [place // 2 + place % 2 * half for place in range(rule.head_dim)]
    if rule.heads == ("pairs", "halves"):
        inner = [place % half * 2 + place // half for place in range(rule.head_dim)]
    return [begin + row for begin in range(0, weight.shape[0], rule.head_dim) for row in inner]


SHOWN = 8


def first_of(names: Sequence[str], count: int = 1) -> str:
    """`a …`: the first names, and a sign that there are more."""
    more = " …" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def unused_rules(name: str, rules: Sequence[NameRule], parameters: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each rule of a file that applies to no parameter, or one where none applies.

    Rules that come with mslaunch cover variants of a network, so some of them may be unused.
    """
    listed = list(parameters)
    used = {match[0].where for parameter in listed if (match := first_match(rules, parameter))}
    unused = [rule for rule in rules if rule.where not in used]
    if unused and not used:
        first = f"; the first one matches {rules[0].sources[0]}, the first parameter is {listed[0]}" if listed else ""
        return (f"--names {name}: no rule of it applies to a parameter{first}",)
    if is_ready(name):
        return ()
    notes = [f"{rule.where} ({rule.sources[0]}) applies to no parameter" for rule in unused[:SHOWN]]
    if len(unused) > SHOWN:
        notes.append(f"--names {name}: {len(unused) - SHOWN} more of its rules are without use")
    return tuple(notes)


def unmatched_names(name: str, rules: Sequence[NameRule], parameters: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence on parameters that no rule of a network matches: it is not quite that network."""
    if not is_ready(name):
        return ()
    left = [parameter for parameter in parameters if not first_match(rules, parameter)]
    if not left:
        return ()
    count = "1 parameter matches" if len(left) == 1 else f"{len(left)} parameters match"
    return (f"--names {name}: {count} no rule, so names are kept: {first_of(left)}",)
