"""Checkpoint files: their names, their steps, and whether they are whole. Needs no MindSpore."""
