"""Scores kept within a cap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_numbers
from attention.arrays.pytrees import register_pytree
from attention.arrays.shapes import with_rank
from attention.scores.score import Score
from attention.scores.validation import per_score


@register_pytree
@dataclasses.dataclass(frozen=True)
class SoftCap(Score):
  """Another score kept within -cap and cap: cap * tanh(score / cap).

  Source: Bello et al. 2017, arXiv:1611.09940, appendix A.2; for attention: Gemma 2, 2024, arXiv:2408.00118,
  section 2.

  Attributes:
    score: any score.
    cap: a positive number, or numbers [...] that broadcast (one for each head).

  Raises:
    ValueError: if the cap is not positive: a float at once, others when attention is calculated, if they are
      known then (not arguments of `jax.jit`, which are traced).
  """

  axes = {"cap": ""}
  score: Score
  cap: jax.Array | float

  def __post_init__(self):
    if isinstance(self.score, (int, float, np.ndarray)) or isinstance(self.cap, Score):
      raise ValueError(f"SoftCap needs a score and then a cap, got {self.score!r}, {self.cap!r}")
    # Arrays and integers pass: JAX also builds trees of gradients, or of axes, in the form of a score.
    if type(self.cap) is float and not self.cap > 0:
      raise ValueError(f"cap must be positive, got {self.cap}")

  def validate(self):
    if not isinstance(self.score, Score):
      raise ValueError(f"SoftCap needs a score such as ScaledDotProduct(), got {self.score!r}")
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
    cap = per_score("cap", self.cap, scores)
    rank = max(scores.ndim, cap.ndim)
    scores, cap = with_rank(scores, rank), with_rank(cap, rank)
    # Far from 0 tanh is 1, and its derivative 0, also where the score of a masked pair has overflowed. Chosen
    # by where, not by clip, whose tangents are products with 0: an infinite one would become NaN.
    is_nan, is_near = jnp.isnan(scores), jnp.abs(scores) < 32 * cap
    near = cap * jnp.tanh(jnp.where(is_near, scores, 0) / cap)
    far = cap * jnp.sign(jnp.where(is_nan, 0, scores))
    return jnp.where(is_near, near, jnp.where(is_nan, jnp.nan, far))
