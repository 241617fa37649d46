"""What ranks, devices and hosts measure: which lines of logs tell it, and what agents are told to look for."""
