"""The model, its loss and optimizer, and the training step."""
