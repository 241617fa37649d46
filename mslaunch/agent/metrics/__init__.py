"""What an agent measures: numbers in the logs of its ranks, resources and devices."""
