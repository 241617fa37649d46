"""Runs on every host and keeps its ranks. Python 3.9, standard library only."""
