"""Scores with a soft cap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_numbers
from attention.arrays.named_axes import register_pytree
from attention.scores.base import Score


@register_pytree
@dataclasses.dataclass(frozen=True)
class SoftCap(Score):
  """Limits the scores of another score function to (-cap, cap): cap * tanh(score / cap).

  Attributes:
    score: a score function.
    cap: a positive number, or an array [...] with leading axes such as heads.

  Raises:
    ValueError: if the cap is not positive. A float is checked at once, an array when attention is computed,
      unless it is traced.

  References:
    Bello et al. 2017, arXiv:1611.09940, appendix A.2; for attention: Gemma 2, 2024, arXiv:2408.00118, section
    2.
  """

  axes = {"cap": ""}
  score: Score
  cap: jax.Array | float

  def __post_init__(self):
    if isinstance(self.score, (int, float, np.ndarray)) or isinstance(self.cap, Score):
      raise ValueError(f"SoftCap takes a score and a cap, in this order, got {self.score!r}, {self.cap!r}")
    # Arrays and integers are not checked here: JAX builds trees of gradients and of axes from the class.
    if type(self.cap) is float and not self.cap > 0:
      raise ValueError(f"cap must be positive, got {self.cap}")

  def validate(self):
    if not isinstance(self.score, Score):
      raise ValueError(f"SoftCap.score must be a Score such as ScaledDotProduct(), got {self.score!r}")
    check_numbers("cap", self.cap, "positive and finite in float32", lambda cap: (cap > 0) & np.isfinite(cap))
    self.score.validate()

  def query_features(self, queries):
    return self.score.query_features(queries)

  def key_features(self, keys):
    return self.score.key_features(keys)

  def score_mod(self, scores, t, s):
    return self.score.score_mod(scores, t, s)

  def scores(self, query_features, key_features):
    scores = self.score.scores(query_features, key_features)
    cap = jnp.asarray(self.cap, scores.dtype)
    # Far from 0, tanh is 1 and its derivative is 0, even if the score of a masked pair overflowed. `where`
    # instead of `clip`, because clip multiplies tangents by 0, which makes NaN of infinite ones.
    is_nan, is_near = jnp.isnan(scores), jnp.abs(scores) < 32 * cap
    near = cap * jnp.tanh(jnp.where(is_near, scores, 0) / cap)
    far = cap * jnp.sign(jnp.where(is_nan, 0, scores))
    return jnp.where(is_near, near, jnp.where(is_nan, jnp.nan, far))
