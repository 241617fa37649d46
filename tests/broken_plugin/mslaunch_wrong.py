"""Plug-ins that can be imported, and are not what their groups are for."""

from mslaunch.plan.methods.built_in import Dynamic
from mslaunch.transports.base import Transport

NUMBER = 3


class Renamed(Transport):
    """Its entry point has another name."""

    name = "other"


class RenamedMethod(Dynamic):
    """Its entry point has another name."""

    name = "other"
