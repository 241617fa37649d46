"""Sharded sets: which files belong together, how they are cut, and how another layout is made of them."""
