"""Derivatives that recompute instead of storing."""

import functools

import jax

# For functions whose derivative calculates them again, and keeps nothing but their arguments.
recomputed = functools.partial(
  jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False
)
