"""mslaunch starts, watches and explains distributed MindSpore jobs."""

__version__ = "0.1.0"
