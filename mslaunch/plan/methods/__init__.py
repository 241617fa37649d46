"""Which methods there are: four built in, and those that plug-ins add."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mslaunch import plugins
from mslaunch.errors import RequestError, did_you_mean
from mslaunch.plan.methods.built_in import Dynamic, Mpirun, Msrun, RankTableMethod
from mslaunch.plan.methods.method import Method

if TYPE_CHECKING:
    from mslaunch.settings.resolve import Settings

GROUP = "mslaunch.methods"
METHODS: dict[str, Method] = {method.name: method for method in (Dynamic(), Msrun(), Mpirun(), RankTableMethod())}


def find_method(settings: Settings) -> Method:
    """Return the method that the settings name: a built-in one, else a plug-in's."""
    name = settings.values.method
    method = METHODS.get(name) or plugins.load(GROUP, name, partial(_make, name))
    if method is None:
        names = [*METHODS, *plugins.names(GROUP)]
        hint = did_you_mean(name, names) or f". There are {', '.join(names)}."
        raise RequestError(f"{settings.sources['method']}: there is no method {name!r}{hint}")
    return method


def _make(name: str, loaded: Any) -> Method:
    """Make the method of a plug-in; refuse what is not a method here, not in the middle of a job."""
    if not isinstance(loaded, type) or not issubclass(loaded, Method):
        raise TypeError(f"{loaded!r} is not a subclass of mslaunch.plan.methods.method.Method")
    method: Method = loaded()
    if method.name != name:
        raise ValueError(f"its name is {method.name!r}, and the entry point calls it {name!r}")
    return method
