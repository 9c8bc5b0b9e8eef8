"""Biases: terms that are added to the scores."""
