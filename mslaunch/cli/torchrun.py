"""`mslaunch torchrun`: a line that was written for torchrun, with its options and its default of one rank."""

from functools import partial

from mslaunch.cli.parsing.msrun_options import TORCHRUN
from mslaunch.cli.train import call_with_defaults

app = partial(call_with_defaults, TORCHRUN, "--local_worker_num=1")
