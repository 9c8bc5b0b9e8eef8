"""Experiments on attention with sequence-to-sequence models.

The files in this folder are the scripts. Each package may import those above it:

    cli         how a script starts: flags, files, and one line for a user error
    devices     devices and processes
    data        text and tasks (toy language, SCAN, parallel text): sentences into batches
    learning    the model of a config, its loss, its optimizer, and the training step
    inference   translators: decoding and scoring
    evaluation  metrics of translations
    runs        the folder of a run: its record, checkpoints, and restoring
    training    the training loop and its hooks
    figures     figures of runs
    comparison  comparison of runs, and sweeps
    benchmarks, peers, studies, explorer, introduction

`training/loop.py` is a good start: from the config to the trained translator.
"""

import os
import sys

from experiments.cli import signals

# Set before JAX is imported. XLA would print a spurious warning about CPU features for each cached program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# `python -m experiments.NAME`, before the imports of the script.
if sys.argv[:1] == ["-m"] and any(argument.startswith("experiments.") for argument in sys.orig_argv):
  signals.exit_on_signals()
