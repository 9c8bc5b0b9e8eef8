"""Experiments on attention, and the translator that they train."""

import os

from experiments.commands import stopping

if stopping.runs_as_script():  # before JAX is imported, which takes seconds
  stopping.end_at_interrupts()

# Before JAX is imported: of each program that it finds in the compilation cache, XLA would tell that it was
# compiled for a processor which it takes for another.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
