"""What is measured: attention of given sizes to random inputs, and what is right for a few of its queries."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# How many positions are checked, in each sentence and head, in float64.
CHECKED = 8
# How far off results may be, relative to the largest of them, or to 0.01.
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2}


@dataclasses.dataclass(frozen=True)
class Case:
  """One attention.

  Attributes:
    score: "dot_product", "additive", "bilinear" or "cosine".
    batch: B.
    length: T = S.
    heads: N.
    width: H, or A of additive attention; also that of the values.
    causal: whether queries attend only to keys before them, and to their own.
    window: to how many keys they attend at the most, if it is not to all; only together with `causal`.
    dtype: "float32" or "bfloat16".
  """

  score: str
  batch: int
  length: int
  heads: int
  width: int
  causal: bool = False
  window: int | None = None
  dtype: str = "float32"

  def __post_init__(self):
    if self.window and not self.causal:
      raise ValueError(f"a window must be causal, got window {self.window} and causal {self.causal}")

  @property
  def name(self) -> str:
    """What tables call the case."""
    sizes = self.batch, self.length, self.heads, self.width
    which = f" window {self.window}" if self.window else " causal" if self.causal else ""
    half = "" if self.dtype == "float32" else f" {self.dtype}"
    return f"{self.score} {sizes}{which}{half}"

  def score_bytes(self) -> int:
    """Returns how much memory the scores take if they are stored."""
    size = 4 if self.dtype == "float32" else 2
    return size * self.batch * self.heads * self.length**2

  def hidden_bytes(self) -> int:
    """Returns how much memory the scores take if what they are sums of is stored."""
    return self.score_bytes() * (self.width if self.score == "additive" else 1)


class Inputs(NamedTuple):
  """Arrays [B T N H] in float32, and the score's parameter: a score vector [A], a matrix [H H], or None.

  `of_context` are the derivatives of a loss by the context.
  """

  queries: np.ndarray
  keys: np.ndarray
  values: np.ndarray
  parameter: np.ndarray | None
  of_context: np.ndarray


def draw(case: Case) -> Inputs:
  """Returns random inputs."""
  rng = np.random.default_rng(0)
  shape = case.batch, case.length, case.heads, case.width
  queries, keys, values, of_context = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
  sizes = {"additive": (case.width,), "bilinear": (case.width, case.width)}.get(case.score)
  parameter = None
  if sizes is not None:
    parameter = rng.standard_normal(sizes, dtype=np.float32) / np.float32(case.width ** (len(sizes) / 2))
  return Inputs(queries, keys, values, parameter, of_context)


def of_checked(inputs: Inputs) -> Inputs:
  """Returns inputs of a loss of the context at the checked positions alone."""
  of_context = np.zeros_like(inputs.of_context)
  checked = _checked(inputs)
  of_context[:, checked] = inputs.of_context[:, checked]
  return inputs._replace(of_context=of_context)


def check(case: Case, inputs: Inputs, context: np.ndarray, gradients: Sequence[np.ndarray]) -> str | None:
  """Returns what is wrong with a context and its derivatives, None if nothing is.

  Args:
    case: the case.
    inputs: from `of_checked`, rounded to the case's dtype.
    context: like the values.
    gradients: like the queries, the keys, the values and the parameter, if there is one.
  """
  found = context[:, _checked(inputs)], *gradients
  names = "context", *(f"gradients by the {name}" for name in ("queries", "keys", "values", "parameter"))
  for name, got, wanted in zip(names, found, _expected(case, inputs), strict=False):
    # A query that sees one key only has derivatives of zero.
    error = np.max(np.abs(got - wanted)) / max(0.01, np.max(np.abs(wanted)))
    if not error <= TOLERANCES[case.dtype]:
      return f"{name} off by {error:.1e}"
  return None


def _checked(inputs: Inputs) -> np.ndarray:
  """Returns some positions from the first to the last."""
  return np.unique(np.linspace(0, inputs.queries.shape[1] - 1, CHECKED).astype(int))


def _expected(case: Case, inputs: Inputs) -> list[np.ndarray]:
  """Returns the context at the checked positions, and the derivatives by all arrays."""
  checked = _checked(inputs)
  distances = checked[:, None] - np.arange(case.length)
  seen = (distances >= 0) & (distances < (case.window or case.length)) | (not case.causal)

  def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, parameter: jax.Array | None):
    scores = jnp.where(seen[None, None], _scores(case, queries[:, checked], keys, parameter), -jnp.inf)
    return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(scores), values)

  with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
    *arrays, of_context = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), inputs)
    context, pull = jax.vjp(attend, *arrays)
    return [*map(np.asarray, jax.tree.leaves([context, pull(of_context[:, checked])]))]


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
