"""Array utilities: pytrees with named axes, shapes, checks, sharding, loops, eager compilation, closures."""
