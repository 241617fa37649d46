"""Finds the state_dict in what torch.save wrote: under which key it is, and which tensors it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mslaunch.checkpoint.pickled_values import Opaque, TensorRef
from mslaunch.checkpoint.tensor import Malformed

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
_RANDOM = re.compile(r"(\w+_)?rng(_\w+)?")
"""How the state of random numbers is called, which is a tensor."""


def find_state_dict(value: Any, key: str | None) -> dict[str, TensorRef]:
    """Return the tensors of the network; `key` names its state_dict where there are several."""
    found = _named(_tensors(_by_key(value, key) if key else _state_dict(value)))
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


def _state_dict(value: Any, level: int = 0) -> dict[Any, Any]:
    """Follow the words of wrappers; tensors beside one, such as the best accuracy, are not the network's."""
    if not isinstance(value, dict):
        raise Malformed(f"it holds no state_dict{_whole(value)}. Save model.state_dict() with torch.save")
    if value.keys() >= _OPTIMIZER:
        raise Malformed("it holds an optimizer's state, no network's. Save model.state_dict() with torch.save")
    network = {name: one for name, one in value.items() if not _is_of_training(name, one)}
    inner = {name: one for name, one in network.items() if isinstance(one, dict) and _has_tensor(one)}
    beside = [one for one in network.values() if isinstance(one, TensorRef)]
    wrapper = next((name for name in _WRAPPERS if name in inner), None)
    is_top = level == 0
    if level > _MOST_LEVELS or (beside and not (is_top and inner and (wrapper or _are_numbers(beside)))):
        return network if is_top else value
    if wrapper is not None:
        return _state_dict(inner[wrapper], level + 1)
    if len(inner) > 1:
        names = ", ".join(sorted(str(name)[:40] for name in inner)[:_SHOWN])
        raise Malformed(f"it holds several state_dicts ({names}). Say which one with --key")
    return next(iter(inner.values()), {})


def _are_numbers(tensors: list[TensorRef]) -> bool:
    return all(tensor.shape in ((), (1,)) for tensor in tensors)


def _is_of_training(name: Any, value: Any) -> bool:
    """Tell whether a value is an optimizer's state, by its keys or its name, or that of random numbers."""
    if isinstance(value, dict):
        return value.keys() >= _OPTIMIZER or str(name).startswith("optim")
    return isinstance(value, TensorRef) and _RANDOM.fullmatch(str(name)) is not None


def _has_tensor(value: Mapping[Any, Any]) -> bool:
    queue, seen = [value], set[int]()
    while queue:
        here = queue.pop()
        if id(here) not in seen:
            seen.add(id(here))
            for one in here.values():
                if isinstance(one, TensorRef):
                    return True
                if isinstance(one, dict):
                    queue.append(one)
    return False


def _tensors(value: dict[Any, Any]) -> Iterator[tuple[str, TensorRef]]:
    """The tensors of a state_dict, those of dicts in it included; numbers and texts in it are left out."""
    queue, count = [("", value, 0)], 0
    seen = set[int]()  # a dict that stands in it twice would multiply, level by level
    while queue:
        prefix, here, level = queue.pop()
        if level > _MOST_LEVELS or id(here) in seen:
            raise Malformed(f"its dicts are nested deeper than {_MOST_LEVELS} levels, or one stands in it twice")
        seen.add(id(here))
        for key, one in here.items():
            count += 1
            if count > _MOST_TENSORS:
                raise Malformed(f"over {_MOST_TENSORS} entries")
            if isinstance(one, TensorRef):
                yield f"{prefix}{key}", one
            elif isinstance(one, dict):
                queue.append((f"{prefix}{key}.", one, level + 1))
            elif _is_object(one):
                raise Malformed(f"{prefix}{str(key)[:40]} is {one.words()}")


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


def _is_object(value: Any) -> bool:
    return isinstance(value, Opaque) and value.may_hold_weights
