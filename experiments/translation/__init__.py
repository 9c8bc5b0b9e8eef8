"""Translation: a model, how it is trained, and what it can do.

`load` gives the translator of a run, to be used from Python.
"""

from experiments.translation.loading import load

__all__ = ["load"]
