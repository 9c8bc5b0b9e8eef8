"""Text and tasks: sentences into batches, and the tasks they come from."""
