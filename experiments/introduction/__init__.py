"""Five lessons on attention, each a file; `experiments.walkthrough` prints them."""
