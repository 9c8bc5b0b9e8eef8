"""Experiments on attention, and the translator that they train."""

import os

# Before JAX is imported: of each program that it finds in the compilation cache, XLA would tell that it was
# compiled for a processor which it takes for another.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
