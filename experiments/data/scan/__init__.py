"""SCAN: commands to actions, generated."""
