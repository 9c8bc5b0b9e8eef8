"""Runs: their folders, records and checkpoints.

`load` returns the translator of a run, and `load_ensemble` an ensemble of several runs.
"""

from experiments.runs.restore import load, load_ensemble

__all__ = ["load", "load_ensemble"]
