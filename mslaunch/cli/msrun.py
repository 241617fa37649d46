"""`mslaunch msrun`: a line that was written for msrun, with its options and its default of 8 ranks."""

from functools import partial

from mslaunch.cli.parsing.msrun_options import MSRUN
from mslaunch.cli.train import call_with_defaults

app = partial(call_with_defaults, MSRUN, "--workers=8")
