"""Rank tables: what HCCL reads from RANK_TABLE_FILE."""
