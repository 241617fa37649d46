"""Fuzzing of everything that mslaunch reads: `make fuzz`."""
