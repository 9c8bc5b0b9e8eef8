"""Examples to copy from."""

import experiments as experiments  # before JAX, since it sets what JAX logs
