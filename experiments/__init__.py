"""Experiments on attention with sequence-to-sequence models."""

import os
import sys

from experiments.cli import signals

# Set before JAX is imported. XLA would print a spurious warning about CPU features for each cached program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# `python -m experiments.NAME`, before the imports of the script.
if sys.argv[:1] == ["-m"] and any(argument.startswith("experiments.") for argument in sys.orig_argv):
  signals.exit_on_signals()
