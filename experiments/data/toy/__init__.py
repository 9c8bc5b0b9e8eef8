"""The toy language: English to Italian, generated, with true alignments."""
