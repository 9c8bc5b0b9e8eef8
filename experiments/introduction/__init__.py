"""Five lessons on attention, one per file. `experiments.walkthrough` prints them."""
