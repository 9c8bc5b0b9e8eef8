"""Equivalent models in other libraries."""
