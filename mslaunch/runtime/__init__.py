"""What user scripts may import: `from mslaunch.runtime import load_config, init_env, resume`."""

from __future__ import annotations

from mslaunch.runtime.config import Config, load_config
from mslaunch.runtime.environment import init_env
from mslaunch.runtime.resume import resume

__all__ = ["Config", "init_env", "load_config", "resume"]
