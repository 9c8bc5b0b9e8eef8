"""Comparison of runs, and sweeps over configs."""
