"""Weights of other frameworks: PyTorch's files, names, matching and comparison. Needs no torch."""
