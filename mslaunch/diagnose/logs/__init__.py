"""Reading logs: where they come from, and what each line shows."""
