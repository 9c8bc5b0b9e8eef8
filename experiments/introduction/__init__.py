"""The five introductory texts that the project grew from: their systems, and lessons on them."""
