"""Benchmarks of attention functions: cases, baselines, timing and reports."""
