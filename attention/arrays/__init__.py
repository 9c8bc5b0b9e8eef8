"""Arrays: their axes, shapes, precision, devices, and loops over them."""
