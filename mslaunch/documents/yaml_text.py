"""YAML from outside: depth, aliases and numbers are bounded before anything is built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from mslaunch.documents.limits import DEEPEST, LONGEST_NUMBER, MOST_BYTES, Unreadable, too_deep

_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_FLOAT = "tag:yaml.org,2002:float"


def _reads_exponents(base: Any) -> Any:
    """Derive a loader or dumper for which 1e-3 is the number that everybody means; for PyYAML it is text."""
    derived: Any = type(base.__name__, (base,), {})
    derived.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))
    return derived


# The C ones are ten times faster.
_Loader = _reads_exponents(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_Dumper = _reads_exponents(getattr(yaml, "CSafeDumper", yaml.SafeDumper))
MOST_VALUES = 100_000
"""Those that aliases repeat are counted as often as they stand there: they can multiply, level by level."""
_NUMBERS = ("tag:yaml.org,2002:int", _FLOAT)


def parse_yaml(text: str) -> Any:
    """Read a YAML text of one document, or raise Unreadable."""
    node = compose_one(text)
    return construct_yaml(node) if node is not None else None


def write_yaml(documents: Iterable[Any]) -> str:
    """Write documents so that `parse_yaml` and PyYAML read the same."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def compose_one(text: str) -> yaml.Node | None:
    """Read the nodes of a text of one document, None where it is empty, or raise Unreadable."""
    nodes = compose_yaml(text)
    if len(nodes) > 1:
        raise Unreadable("one document is expected, found another", nodes[1].start_mark.line + 1)
    return nodes[0] if nodes else None


def compose_yaml(text: str) -> list[yaml.Node]:
    """Read the nodes of all documents, or raise Unreadable."""
    if len(text) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES >> 20} MB")
    try:
        _check_events(text)
        nodes = list(yaml.compose_all(text, Loader=_Loader))
        for node in nodes:
            _check_numbers(node)
    except yaml.YAMLError as error:
        raise _located(error) from None
    except UnicodeError:
        raise Unreadable("not text in UTF-8") from None
    return nodes


def construct_yaml(node: yaml.Node) -> Any:
    """Build the value of a document, or raise Unreadable."""
    try:
        return _Constructor().construct_document(node)
    except yaml.YAMLError as error:
        raise _located(error) from None


def serialize_yaml(nodes: Sequence[yaml.Node]) -> str:
    """Write nodes as text, in their order and style, without comments, or raise Unreadable."""
    try:
        text = yaml.serialize_all(nodes, Dumper=_Dumper, allow_unicode=True, explicit_start=len(nodes) > 1 or None)
    except yaml.YAMLError as error:
        raise _located(error) from None
    except UnicodeError:
        raise Unreadable("not text in UTF-8") from None
    return str(text)


class _Constructor(SafeConstructor):
    """PyYAML's, with a place for every error: its own functions raise KeyError, IndexError and others for scalars."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            why = f"a value cannot be read ({error or type(error).__name__})"
            raise ConstructorError(None, None, why, node.start_mark) from None


def _check_events(text: str) -> None:
    """Bound depth and aliases on the stream of events, where nothing has been built yet."""
    open_sizes: list[int] = []  # of the collections that are open: the values in each so far
    anchors: list[str | None] = []
    sizes: dict[str | None, int] = {}  # of the values that have an anchor
    values = 0
    for event in yaml.parse(text, Loader=_Loader):
        size = 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append(0)
            anchors.append(event.anchor)
            if len(open_sizes) > DEEPEST:
                raise too_deep(_line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes[anchors.pop()] = open_sizes.pop()
            values -= size  # they have been counted one by one
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                raise Unreadable(f"*{event.anchor} stands inside the value that it names", _line(event))
            size = sizes.get(event.anchor, 1)  # an unknown one is an error of the composer
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
        else:
            continue
        values += size
        if values > MOST_VALUES:
            raise Unreadable(f"it has more than {MOST_VALUES:,} values", _line(event))
        if open_sizes:
            open_sizes[-1] += size


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None


def _check_numbers(document: yaml.Node) -> None:
    queue, seen = [document], {id(document)}
    while queue:
        node = queue.pop()
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            what = f"the number {str(node.value)[:12]}… has {len(node.value)} characters"
            raise Unreadable(what, node.start_mark.line + 1)
        inner = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        for child in inner:
            if id(child) not in seen:
                seen.add(id(child))
                queue.append(child)


def _located(error: yaml.YAMLError) -> Unreadable:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or (str(error).splitlines() or ["it cannot be read"])[0]
    return Unreadable(str(what), mark.line + 1 if mark else None)
