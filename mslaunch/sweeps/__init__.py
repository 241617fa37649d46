"""Sweeps: one job for every combination of values."""
