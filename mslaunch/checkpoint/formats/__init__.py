"""Checkpoint files: one module per format, and one row that describes it."""
