"""Arrays: their axes, broadcasting, precision, devices, loops over them, programs of them, closures."""
