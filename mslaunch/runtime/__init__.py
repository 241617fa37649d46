"""What user scripts may import: `from mslaunch.runtime import load_config, init_env, resume, report, load_sharded`."""

from __future__ import annotations

from mslaunch.runtime.checkpoints import (
    checkpoint_file,
    checkpoint_files,
    distributed_predict,
    load_sharded,
    resume,
    save_strategy,
)
from mslaunch.runtime.config import Config, init_env, load_config
from mslaunch.runtime.metrics import report

__all__ = [
    "Config",
    "checkpoint_file",
    "checkpoint_files",
    "distributed_predict",
    "init_env",
    "load_config",
    "load_sharded",
    "report",
    "resume",
    "save_strategy",
]
