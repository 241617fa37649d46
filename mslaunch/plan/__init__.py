"""Deciding: pure functions from what was asked and what was found to a Plan. Nothing here acts."""
