"""What user scripts may import: `from mslaunch.runtime import load_config, init_env`."""
