"""Translators: decoding, scoring, unknown words."""
