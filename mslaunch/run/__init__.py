"""A run on disk: its paths, record, events, metrics and logs; finding, stopping, comparing and pruning runs."""
