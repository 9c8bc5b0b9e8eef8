"""Others' programs for the same job, written as one would there."""
