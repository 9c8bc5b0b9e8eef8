"""What the benchmark measures, whom it compares, and how."""
