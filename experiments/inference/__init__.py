"""Translators: decoding, unknown words, alignments."""
