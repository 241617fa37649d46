"""Who waits for whom in a hung or broken collective, and who is to blame."""
