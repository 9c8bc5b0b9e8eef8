"""What is measured: attention of given sizes to random inputs, and what is right for a few of its queries."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# How many queries of a case are checked. Each is calculated alone, in float64.
CHECKED = 3
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

  def operations(self, derivatives: bool) -> float:
    """Returns the multiplications and additions that cannot be avoided, with a tanh counted as one.

    Backward is 2.5 times forward: of the forward pass's two products one is done again, and each has two
    derivatives.
    """
    pairs: float = self.batch * self.heads * self.length**2
    if self.window:
      pairs = self.batch * self.heads * self.length * min(self.window, self.length)
    elif self.causal:
      pairs /= 2
    a_pair = 6 * self.width if self.score == "additive" else 4 * self.width
    return pairs * a_pair * (3.5 if derivatives else 1)

  @property
  def score_bytes(self) -> int:
    """How much memory the scores take if they are stored."""
    size = 4 if self.dtype == "float32" else 2
    return size * self.batch * self.heads * self.length**2

  @property
  def hidden_bytes(self) -> int:
    """How much memory the scores take if they are stored, and before them what they are sums of."""
    return self.score_bytes * (self.width if self.score == "additive" else 1)


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


def check(case: Case, inputs: Inputs, context: np.ndarray, gradients: Sequence[np.ndarray]) -> str | None:
  """Returns what is wrong with a context and its derivatives, None if nothing is.

  Context and derivatives by the query are calculated for a few queries, in float64. The derivatives by keys
  and values are checked as a whole, by what they have in common with these: the context is linear in the
  values; and a change of all keys that a change of the queries would undo changes it as the latter does.

  Args:
    case: the case.
    inputs: as they were given, rounded to the case's dtype.
    context: like the values.
    gradients: like the queries, the keys and the values.
  """
  rng = np.random.default_rng(1)
  for _ in range(CHECKED):
    b, t, n = (int(rng.integers(size)) for size in inputs.queries.shape[:-1])
    desired = _of_one_query(case, inputs, b, t, n)
    for name, got, wanted in zip(("context", "gradient"), (context, gradients[0]), desired, strict=True):
      # A query that sees one key only has derivatives of zero.
      error = np.max(np.abs(np.asarray(got[b, t, n], np.float64) - wanted)) / max(
        0.01, np.max(np.abs(wanted))
      )
      if not error <= TOLERANCES[case.dtype]:
        return f"{name} off by {error:.1e}"
  for name, of_one, of_other in (("keys", gradients[1], gradients[0]), ("values", gradients[2], context)):
    if not np.all(np.isfinite(of_one)):
      return f"gradients by the {name} not finite"
    if not np.any(of_one) and np.max(np.abs(of_other)) > TOLERANCES[case.dtype]:
      return f"gradients by the {name} zero"
  for name, one, other, size in _that_agree(case, inputs, context, gradients):
    error = np.max(np.abs(one - other)) / max(size, 1e-30)
    if not error <= TOLERANCES[case.dtype]:
      return f"gradients by the {name} off by {error:.1e}"
  return None


def _that_agree(case: Case, inputs: Inputs, context, gradients):
  """Returns, for keys and values, two arrays that agree if their derivatives are right, and their size."""
  queries, keys, values, parameter, of_context = (
    None if array is None else np.asarray(array, np.float64) for array in inputs
  )
  of_queries, of_keys, of_values = (np.asarray(gradient, np.float64) for gradient in gradients[:3])

  def moments(one, other):
    return np.tensordot(one, other, axes=((0, 1, 2), (0, 1, 2)))

  with_queries, with_keys = moments(of_queries, queries), moments(keys, of_keys)
  by_keys = {
    # A score q . k does not change if q is multiplied by a matrix and k by its inverse, transposed.
    "dot_product": lambda: (with_keys, with_queries),
    "bilinear": lambda: (parameter @ with_keys, with_queries @ parameter),
    # A cosine does not change if both are turned: by an antisymmetric matrix, if it is a little.
    "cosine": lambda: (with_keys - with_keys.T, with_queries - with_queries.T),
    # A sum q + k changes with either alike.
    "additive": lambda: (np.sum(of_keys, axis=(0, 1, 2)), np.sum(of_queries, axis=(0, 1, 2))),
  }[case.score]()
  by_values = moments(values, of_values), moments(context, of_context)
  return (
    ("keys", *by_keys, np.linalg.norm(of_keys)),
    ("values", *by_values, np.linalg.norm(of_values)),
  )


def _of_one_query(case: Case, inputs: Inputs, b: int, t: int, n: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the context of one query, and the derivatives by it, in float64."""
  keys, values = (np.asarray(array[b, :, n], np.float64) for array in (inputs.keys, inputs.values))
  query, of_context = (
    np.asarray(array[b, t, n], np.float64) for array in (inputs.queries, inputs.of_context)
  )
  parameter = None if inputs.parameter is None else np.asarray(inputs.parameter, np.float64)
  first = max(0, t - case.window + 1) if case.window else 0
  seen = slice(first, t + 1) if case.causal else slice(None)
  keys, values = keys[seen], values[seen]
  scores, slopes = _scores_of_one_query(case, query, keys, parameter)
  weights = np.exp(scores - np.max(scores))
  weights /= np.sum(weights)
  of_weights = values @ of_context
  return weights @ values, (weights * (of_weights - weights @ of_weights)) @ slopes


def _scores_of_one_query(case, query, keys, parameter) -> tuple[np.ndarray, np.ndarray]:
  """Returns the scores [S] and their derivatives by the query [S H]."""
  if case.score == "dot_product":
    return keys @ query / math.sqrt(case.width), keys / math.sqrt(case.width)
  if case.score == "bilinear":
    return keys @ (query @ parameter), keys @ parameter.T
  if case.score == "additive":
    hidden = np.tanh(query + keys)
    return hidden @ parameter, (1 - hidden**2) * parameter
  length = np.linalg.norm(query)
  directions = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
  scores = directions @ query / length
  return scores, (directions - scores[:, None] * query / length) / length
