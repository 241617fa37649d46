"""Finds the state_dict in what torch.save wrote: under which key it is, and which tensors it holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from mslaunch.checkpoint.formats.tensor import Malformed
from mslaunch.weights.pickled_values import Opaque, TensorRef

_MOST_TENSORS = 1 << 20
_MOST_LEVELS = 8
_SHOWN = 8
_WRAPPERS = (
    *("state_dict", "model_state_dict", "model", "module", "net", "network"),
    *("model_state", "net_state_dict", "network_state_dict", "network_weights", "params", "weights"),
)
"""Where programs keep the state_dict in what they save."""
_OPTIMIZER = {"state", "param_groups"}
"""The keys of an optimizer's state."""
_OPTIMIZER_NAME = re.compile(r"optim(izer)?s?(_(states?|dicts?|[a-z]|\d+))*")
"""How programs call an optimizer's state."""
_RANDOM = re.compile(r"(\w+_)?rng(_\w+)?")
"""How the state of random numbers is called, which is a tensor."""


def find_state_dict(value: Any, key: str | None) -> dict[str, TensorRef]:
    """Return the tensors of the network; `key` names its state_dict where there are several."""
    found = _named(_tensors(_by_key(value, key) if key else _state_dict(value, _holders(value, _is_tensor))))
    if not found:
        raise Malformed(f"it holds no tensor{_objects(value)}")
    if not any(all(tensor.shape) for tensor in found.values()):
        raise Malformed(
            "all of its tensors are empty: DeepSpeed ZeRO-3 keeps the weights elsewhere. "
            "Run zero_to_fp32.py, which DeepSpeed puts beside them, and import what it writes"
        )
    return found


def _by_key(value: Any, key: str) -> dict[Any, Any]:
    for step in key.split("."):
        known = value if isinstance(value, dict) else {}
        value = known.get(step)
        if value is None:
            names = ", ".join(str(name)[:40] for name in list(known)[:_SHOWN])
            more = " …" if len(known) > _SHOWN else ""
            raise Malformed(f"it holds no state_dict under {key}; its keys are {names or 'none'}{more}")
    if not isinstance(value, dict):
        raise Malformed(f"it holds no state_dict under {key}{_whole(value)}. Save model.state_dict() with torch.save")
    return value


def _state_dict(value: Any, holders: Set[int], level: int = 0) -> dict[Any, Any]:
    """Follow the words of wrappers; tensors beside one, such as the best accuracy, are not the network's."""
    if not isinstance(value, dict):
        raise Malformed(f"it holds no state_dict{_whole(value)}. Save model.state_dict() with torch.save")
    if value.keys() >= _OPTIMIZER:
        raise Malformed("it holds an optimizer's state, no network's. Save model.state_dict() with torch.save")
    network = {name: one for name, one in value.items() if not _is_of_training(name, one)}
    inner = {name: one for name, one in network.items() if isinstance(one, dict) and id(one) in holders}
    beside = [one for one in network.values() if id(one) in holders and not isinstance(one, dict)]
    wrapper = next((name for name in _WRAPPERS if name in inner), None)
    is_top = level == 0
    if level > _MOST_LEVELS or (beside and not (is_top and inner and (wrapper or _are_numbers(beside)))):
        _check_optimizers(inner)
        return network if is_top else value
    if wrapper is not None:
        return _state_dict(inner[wrapper], holders, level + 1)
    _check_optimizers(inner)
    if len(inner) > 1:
        names = ", ".join(sorted(str(name)[:40] for name in inner)[:_SHOWN])
        raise Malformed(f"it holds several state_dicts ({names}). Say which one with --key")
    return next(iter(inner.values()), {})


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(one, TensorRef) and one.shape in ((), (1,)) for one in values)


def _is_of_training(name: Any, value: Any) -> bool:
    """Tell whether a value is the state of optimizers, by its keys, or that of random numbers, by its name."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_state(name, one) for one in value)
    return _is_state(name, value)


def _is_state(name: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() >= _OPTIMIZER
    return isinstance(value, TensorRef) and _RANDOM.fullmatch(str(name)) is not None


def _check_optimizers(inner: Mapping[Any, Any]) -> None:
    """Refuse what is called as an optimizer's state is and has not its keys: it may be a part of the network."""
    for name in inner:
        if _OPTIMIZER_NAME.fullmatch(str(name)):
            raise Malformed(
                f"{name} holds tensors, and may be an optimizer's state or a part of the network. "
                f"Save model.state_dict() with torch.save, or name the state_dict with --key"
            )


def _holders(value: Any, kind: Callable[[Any], bool]) -> set[int]:
    """Return the ids of what is of a kind, and of the containers that hold such, at any depth; each is read once."""
    around: dict[int, list[int]] = {}
    found: set[int] = set()
    queue, seen = [value], set[int]()
    while queue:
        here = queue.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if kind(here):
            found.add(id(here))
        for _, one in _entries(here):
            around.setdefault(id(one), []).append(id(here))
            queue.append(one)
    above = list(found)
    while above:
        for holder in around.get(above.pop(), ()):
            if holder not in found:
                found.add(holder)
                above.append(holder)
    return found


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The values in a container by their keys; in a list by their places."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _tensors(value: dict[Any, Any]) -> Iterator[tuple[str, TensorRef]]:
    """The tensors of a state_dict, those of dicts and lists in it included; numbers and texts in it are left out."""
    holders = _holders(value, lambda one: _is_tensor(one) or _is_object(one))
    queue: list[tuple[str, Any, int]] = [("", value, 0)]
    count = 0
    seen = set[int]()  # a dict that stands in it twice would multiply, level by level
    while queue:
        prefix, here, level = queue.pop()
        if level > _MOST_LEVELS or id(here) in seen:
            raise Malformed(f"its containers are nested deeper than {_MOST_LEVELS} levels, or one stands in it twice")
        seen.add(id(here))
        for key, one in _entries(here):
            count += 1
            if count > _MOST_TENSORS:
                raise Malformed(f"over {_MOST_TENSORS} entries")
            if isinstance(one, TensorRef):
                yield f"{prefix}{key}", one
            elif _is_object(one):
                raise Malformed(f"{prefix}{str(key)[:40]} is {one.words()}")
            elif id(one) in holders:
                queue.append((f"{prefix}{key}.", one, level + 1))


def _named(tensors: Iterator[tuple[str, TensorRef]]) -> dict[str, TensorRef]:
    named: dict[str, TensorRef] = {}
    for name, tensor in tensors:
        if name in named:
            raise Malformed(f"{name} stands in it twice")
        named[name] = tensor
    return named


def _whole(value: Any) -> str:
    return f" but {value.path[:80]}" if isinstance(value, Opaque) else ""


def _objects(value: Any) -> str:
    """Name the objects in a file that holds no tensor: a whole model may be one."""
    entries = value.items() if isinstance(value, dict) else ()
    found = [f"{str(name)[:40]} is {one.words()}" for name, one in entries if _is_object(one)]
    return f"; {found[0]}" if found else ""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef)


def _is_object(value: Any) -> bool:
    return isinstance(value, Opaque) and value.may_hold_weights
