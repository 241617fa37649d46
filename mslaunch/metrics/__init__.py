"""Numbers of a job over time: what a row of metrics.jsonl means, how rows are thinned, drawn and watched. Pure."""
