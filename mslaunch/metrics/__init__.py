"""Numbers of a job over time: which lines tell them, what a row of metrics.jsonl means, what is told of them. Pure."""
