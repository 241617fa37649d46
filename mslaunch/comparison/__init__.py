"""What differs between runs: configuration, code, environment, versions, metrics and speed. Pure."""
