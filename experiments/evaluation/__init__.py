"""Metrics of translations, and reports of them."""
