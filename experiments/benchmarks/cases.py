"""The cases of the benchmark: attention of given sizes with random inputs, and a check of the results."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention

# Number of positions per sentence and head that are compared with float64.
CHECKED = 8
# Allowed errors, relative to the largest result, or to 0.01.
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
NORMALIZERS = {
  "softmax": None,
  "softmax_off_by_one": attention.Softmax(sink=0.0),
  "sigmoid": attention.Sigmoid(subtract_log_length=True),
  "softpick": attention.Softpick(),
  "stick_breaking": attention.StickBreaking(),
  "sparsemax": attention.Sparsemax(),
  "entmax15": attention.Entmax15(),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """The sizes and options of an attention function.

  Attributes:
    score: "dot_product", "additive", "bilinear" or "cosine".
    batch: B.
    length: T = S.
    heads: N.
    width: H, or A of additive attention; also the width of the values.
    causal: whether the mask is causal.
    window: size of a sliding window, or None; requires `causal`.
    dtype: "float32", "bfloat16" or "float16".
    normalizer: a key of NORMALIZERS.
    padded: whether the keys of each sentence after a random length are masked.
  """

  score: str
  batch: int
  length: int
  heads: int
  width: int
  causal: bool = False
  window: int | None = None
  dtype: str = "float32"
  normalizer: str = "softmax"
  padded: bool = False

  def __post_init__(self):
    if self.window and not self.causal:
      raise ValueError(f"window requires causal, got window={self.window}, causal={self.causal}")
    if self.window and self.padded:
      raise ValueError(f"padded excludes a window, whose queries may have no key, got window={self.window}")

  @property
  def name(self) -> str:
    """Name of the case in tables."""
    sizes = self.batch, self.length, self.heads, self.width
    which = f" window {self.window}" if self.window else " causal" if self.causal else ""
    which += " padded" if self.padded else ""
    half = "" if self.dtype == "float32" else f" {self.dtype}"
    normalizer = "" if self.normalizer == "softmax" else f" {self.normalizer}"
    return f"{self.score} {sizes}{which}{normalizer}{half}"

  def lengths(self) -> np.ndarray:
    """Returns the lengths of padded sentences, [B]."""
    return np.random.default_rng(1).integers(1, self.length + 1, self.batch)

  def allowed(self, queries: np.ndarray | None = None) -> jax.Array | None:
    """Returns which pairs may attend, booleans [B 1 T S], [1 1 T S] or [B 1 1 S], or None if all may.

    Args:
      queries: positions [T]. Default: all.
    """
    allowed: jax.Array | None = None
    keys = jnp.arange(self.length)[None]
    if self.padded:
      allowed = (keys < jnp.asarray(self.lengths())[:, None])[:, None, None]
    if self.causal:
      rows = jnp.arange(self.length) if queries is None else jnp.asarray(queries)
      distances = rows[:, None] - keys
      seen = ((distances >= 0) & (distances < (self.window or self.length)))[None, None]
      allowed = seen if allowed is None else allowed & seen
    return allowed

  def flops(self, *, both: bool) -> int | None:
    """Returns the floating-point operations in the matrix products of the forward pass, or of both passes.

    The forward pass has two products, the backward pass five, one of them to recompute the scores (Dao 2023,
    arXiv:2307.08691, section 4.1). Masked pairs do not count. None for padded sentences, and for scores
    that are not products.
    """
    if self.score != "dot_product" or self.normalizer != "softmax" or self.padded:
      return None
    pairs = self.length**2
    if self.window:
      pairs = sum(min(t + 1, self.window) for t in range(self.length))
    elif self.causal:
      pairs = self.length * (self.length + 1) // 2
    return (7 if both else 2) * 2 * self.batch * self.heads * pairs * self.width

  def score_bytes(self) -> int:
    """Returns the size of all scores in bytes."""
    size = 4 if self.dtype == "float32" else 2
    return size * self.batch * self.heads * self.length**2

  def hidden_bytes(self) -> int:
    """Returns the size of all scores before the sum over units in bytes."""
    return self.score_bytes() * (self.width if self.score == "additive" else 1)


class Inputs(NamedTuple):
  """Arrays [B T N H] in float32, and the parameter of the score: a vector [A], a matrix [H H], or None.

  `d_context` is the gradient of a loss with respect to the context.
  """

  queries: np.ndarray
  keys: np.ndarray
  values: np.ndarray
  parameter: np.ndarray | None
  d_context: np.ndarray


def draw(case: Case) -> Inputs:
  """Returns random inputs."""
  rng = np.random.default_rng(0)
  shape = case.batch, case.length, case.heads, case.width
  queries, keys, values, d_context = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
  sizes = {"additive": (case.width,), "bilinear": (case.width, case.width)}.get(case.score)
  parameter = None
  if sizes is not None:
    parameter = rng.standard_normal(sizes, dtype=np.float32) / np.float32(case.width ** (len(sizes) / 2))
  return Inputs(queries, keys, values, parameter, d_context)


def restrict_to_checked(inputs: Inputs) -> Inputs:
  """Returns inputs whose loss only depends on the checked positions."""
  d_context = np.zeros_like(inputs.d_context)
  checked = _checked(inputs)
  d_context[:, checked] = inputs.d_context[:, checked]
  return inputs._replace(d_context=d_context)


def check(case: Case, inputs: Inputs, context: np.ndarray, gradients: Sequence[np.ndarray]) -> str | None:
  """Returns an error message if a context or its gradients are wrong, otherwise None.

  Args:
    case: the case.
    inputs: from `restrict_to_checked`, rounded to the dtype of the case.
    context: like the values.
    gradients: like the queries, the keys, the values and the parameter, if there is one.
  """
  results = context[:, _checked(inputs)], *gradients
  names = "context", *(f"gradients of the {name}" for name in ("queries", "keys", "values", "parameter"))
  for name, result, expected in zip(names, results, _expected(case, inputs), strict=False):
    # A query with a single key has zero gradients.
    error = np.max(np.abs(result - expected)) / max(0.01, np.max(np.abs(expected)))
    if not error <= TOLERANCES[case.dtype]:
      return f"{name} off by {error:.1e}"
  return None


def _checked(inputs: Inputs) -> np.ndarray:
  """Returns evenly spaced positions from the first to the last."""
  return np.unique(np.linspace(0, inputs.queries.shape[1] - 1, CHECKED).astype(int))


def _expected(case: Case, inputs: Inputs) -> list[np.ndarray]:
  """Returns the context at the checked positions, and the gradients of all arrays, in float64.

  Other normalizers than the softmax are computed by "dense", which the tests compare with their papers.
  """
  checked = _checked(inputs)

  def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, parameter: jax.Array | None):
    if case.normalizer != "softmax":
      queries, keys, values = (jnp.swapaxes(array, 1, 2) for array in (queries[:, checked], keys, values))
      context = attention.scaled_dot_product_attention(
        queries,
        keys,
        values,
        mask=case.allowed(checked),
        normalizer=NORMALIZERS[case.normalizer],
        implementation="dense",
      )
      return jnp.swapaxes(context, 1, 2)
    scores, allowed = _scores(case, queries[:, checked], keys, parameter), case.allowed(checked)
    scores = scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)
    return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(scores), values)

  with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
    *arrays, d_context = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), inputs)
    context, pull = jax.vjp(attend, *arrays)
    return [*map(np.asarray, jax.tree.leaves([context, pull(d_context[:, checked])]))]


def _scores(case: Case, queries: jax.Array, keys: jax.Array, parameter: Any) -> jax.Array:
  """Returns the scores [B N T S] as the papers define them."""
  if case.score == "additive":
    return jnp.einsum("BTSNA,A->BNTS", jnp.tanh(queries[:, :, None] + keys[:, None]), parameter)
  if case.score == "dot_product":
    queries = queries / math.sqrt(case.width)
  elif case.score == "bilinear":
    queries = queries @ parameter
  else:
    queries, keys = (array / jnp.linalg.norm(array, axis=-1, keepdims=True) for array in (queries, keys))
  return jnp.einsum("BTNH,BSNH->BNTS", queries, keys)
