"""Bytes of tensors on their way from files to files: bounded memory, nothing half written."""
