"""Training, evaluation and use of translation models.

`load` returns the translator of a run, and `load_ensemble` an ensemble of several runs.
"""

from experiments.translation.restore import load, load_ensemble

__all__ = ["load", "load_ensemble"]
