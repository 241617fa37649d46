"""Parameters of one name and many numbers, such as those of experts, as one with a dimension more; and back."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from mslaunch.checkpoint import weights as change
from mslaunch.checkpoint.weights import Weight
from mslaunch.errors import RequestError

NUMBER = "\1"
"""Stands for the number in a template of the way back."""
_MOST = 10_000


def numbered_group(where: str, groups: int, used: set[str]) -> int:
    """Return which group of a rule is the number: the one that the new name does not have."""
    unused = [number for number in range(1, groups + 1) if str(number) not in used]
    if len(unused) != 1:
        raise RequestError(
            f"{where}: `stack` needs one group in `from` that `to` does not use, which is the number; "
            f"{len(unused)} are unused."
        )
    return unused[0]


def numbered_names(where: str, match: re.Match[str], group: int, known: Container[str]) -> list[str]:
    """Return the names of all numbers from 0 on, for one of them; none may be missing before it."""
    since, to = match.span(group)
    name, names = match[0], list[str]()
    while len(names) < _MOST and (one := f"{name[:since]}{len(names)}{name[to:]}") in known:
        names.append(one)
    if name not in names:
        missing = f"{name[:since]}{len(names)}{name[to:]}"
        raise RequestError(f"{where}: {name} is there and {missing} is not; `stack` needs all numbers from 0 on.")
    return names


def stack(weights: Sequence[Weight], axis: int, name: str) -> Weight:
    return change.concat([change.insert_dimension(weight, axis) for weight in weights], axis, name)


def unstack(where: str, weight: Weight, axis: int, template: str) -> list[Weight]:
    """Cut a dimension into its places; NUMBER in the template becomes the number of each."""
    count = weight.shape[axis] if axis < len(weight.shape) else 0
    if not 0 < count <= _MOST:
        raise RequestError(f"{where}: {weight.name} ({weight.words()}) has no dimension {axis} that can be unstacked.")
    names = [template.replace(NUMBER, str(number)) for number in range(count)]
    return [change.remove_dimension(one, axis) for one in change.split(weight, axis, (1,) * count, names)]
