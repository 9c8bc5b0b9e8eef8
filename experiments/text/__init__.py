"""Text into batches."""
