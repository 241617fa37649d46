"""`mslaunch msrun`: a line that was written for msrun, with its options and its default of 8 ranks."""

from __future__ import annotations

from mslaunch.cli.parsing import msrun_options
from mslaunch.cli.train import call_with_defaults

DEFAULT_RANKS = "--workers=8"


def app(args: list[str], **how: object) -> object:
    """Call `train` with msrun's options."""
    return call_with_defaults(args, msrun_options.MSRUN, DEFAULT_RANKS, **how)
