"""Pods of Kubernetes: a launcher and workers that join it, submitted from here."""
