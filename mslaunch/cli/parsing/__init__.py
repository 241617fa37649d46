"""Command lines: options, arguments, and what other launchers' options mean here."""
