"""What a person sees in a terminal: live output, tables, progress, descriptions."""
