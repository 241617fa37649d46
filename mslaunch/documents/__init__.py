"""Documents from outside, JSON and YAML: bounded in size, depth and numbers, and checked against their types."""
