"""The road of every launch: read, connect, plan, create the folder, run, finish."""
