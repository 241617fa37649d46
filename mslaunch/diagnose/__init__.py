"""Why did it die? The table of failure patterns, and the verdict that is made from logs and exit codes."""
