"""A network without a framework, for traces: layers that return what they were given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mslaunch.runtime.trace import torch_trace

Hook = Callable[[Any, Any, Any], None]


@dataclass(frozen=True)
class Called:
    """What a layer is given, and what it returns."""

    given: tuple[Any, ...]
    returned: Any
    names: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name."""


class Tensor:
    """What a trace needs of a tensor."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def asnumpy(self) -> Any:
        return self.values


class Layer:
    """A module that calls the hooks that it was given."""

    def __init__(self, values: Any) -> None:
        self.values = values if isinstance(values, Called) else Called((), values)
        self.hooks: list[Hook] = []
        self.pre_hooks: list[Hook] = []

    def register_forward_hook(self, hook: Hook) -> Layer:
        self.hooks.append(hook)
        return self

    def register_forward_pre_hook(self, hook: Hook, with_kwargs: bool) -> Layer:
        assert with_kwargs
        self.pre_hooks.append(hook)
        return self

    def remove(self) -> None:
        self.hooks.clear()
        self.pre_hooks.clear()

    def __call__(self) -> None:
        for hook in self.pre_hooks:
            hook(self, self.values.given, dict(self.values.names))
        for hook in self.hooks:
            hook(self, self.values.given, self.values.returned)


class Network:
    """Layers that are called in their order."""

    def __init__(self, **layers: Any) -> None:
        self.layers = {name.replace("_", "."): Layer(values) for name, values in layers.items()}

    def named_modules(self) -> list[tuple[str, Layer]]:
        return list(self.layers.items())

    def __call__(self) -> None:
        for layer in self.layers.values():
            layer()


def record(folder: Path, most_values: int = 1000, **layers: Any) -> None:
    network = Network(**layers)
    with torch_trace(network, str(folder), most_values):
        network()


def index_of(folder: Path) -> Any:
    return json.loads((folder / "trace.json").read_text())
