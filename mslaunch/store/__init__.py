"""Run folders: their file names, records, liveness and history."""
