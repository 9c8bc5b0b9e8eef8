"""Experiments on attention with sequence-to-sequence models."""

import os

# Set before JAX is imported. XLA would print a spurious warning about CPU features for each cached program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
