"""Engines: attention from a score, a mask and a bias."""
