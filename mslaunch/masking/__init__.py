"""Secrets in texts and documents, masked before anyone else sees them."""
