"""`mslaunch torchrun`: a line that was written for torchrun, with its options and its default of one rank."""

from __future__ import annotations

from mslaunch.cli.parsing import msrun_options
from mslaunch.cli.train import call_with_defaults

DEFAULT_RANKS = "--local_worker_num=1"


def app(args: list[str], **how: object) -> object:
    """Call `train` with torchrun's options."""
    return call_with_defaults(args, msrun_options.TORCHRUN, DEFAULT_RANKS, **how)
