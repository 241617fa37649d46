"""Runs in the browser: a document of a run, the report that holds it, and the server that shows it live."""
