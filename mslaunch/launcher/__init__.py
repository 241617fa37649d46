"""Acting: gathers facts, executes a Plan through agents, keeps the records of runs."""
