"""Arrays: pytrees with named axes, shapes, checks, devices, loops, eager calls, closures."""
