"""Traces of networks, as mslaunch.runtime.trace records them: read and compared."""
