"""Failure patterns: tables of known failures, and how a line matches one."""
