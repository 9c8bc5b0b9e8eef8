"""Figures of runs and attention maps."""
