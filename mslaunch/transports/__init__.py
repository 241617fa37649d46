"""How agents are started and reached: one protocol, one module a transport."""
