"""Runs inside every rank before the user's script. Python 3.9, standard library only."""
