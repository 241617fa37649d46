"""Batches of a small data set; the last shard has a broken sample."""

CLASSES = 10


def read_label(shard, index):
    label = 12 if shard == 2 and index == 37 else index % CLASSES
    if label >= CLASSES:
        raise ValueError(f"sample {index} has label {label} of {CLASSES} classes")
    return label
