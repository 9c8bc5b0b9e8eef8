"""Examples to copy from."""
