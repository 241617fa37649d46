"""One running attempt: what the agents report, what the launcher decides, and what it orders."""
