"""Translation: a model, how it is trained, and what it can do.

`load` gives the translator of a run, to be used from Python; `load_ensemble` that of several.
"""

from experiments.translation.restore import load, load_ensemble

__all__ = ["load", "load_ensemble"]
