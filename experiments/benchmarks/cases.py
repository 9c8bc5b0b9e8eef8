"""What is measured: attention of given sizes to random inputs, and what is right for a few of its queries."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# How many queries of a case are checked. Each is calculated alone, in float64.
CHECKED = 3
# How far off results may be, relative to the largest of them, or to 0.1.
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
      pairs = self.batch * self.heads * self.length * self.window
    elif self.causal:
      pairs /= 2
    a_pair = 6 * self.width if self.score == "additive" else 4 * self.width
    return pairs * a_pair * (3.5 if derivatives else 1)

  @property
  def score_bytes(self) -> int:
    """How much memory the scores take if they are stored, for additive attention with the hidden layer."""
    pairs = self.batch * self.heads * self.length**2
    return 4 * pairs * (self.width if self.score == "additive" else 1)


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
  values; and it changes with the keys as it does with the queries (or not at all with a key's length).

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
      error = np.max(np.abs(np.asarray(got[b, t, n], np.float64) - wanted)) / max(0.1, np.max(np.abs(wanted)))
      if not error <= TOLERANCES[case.dtype]:
        return f"{name} off by {error:.1e}"
  for name, of_one, of_other in (("keys", gradients[1], gradients[0]), ("values", gradients[2], context)):
    if not np.all(np.isfinite(of_one)):
      return f"gradients by the {name} not finite"
    if not np.any(of_one) and np.max(np.abs(of_other)) > TOLERANCES[case.dtype]:
      return f"gradients by the {name} zero"
  for name, one, other, size in _equal_sums(case, inputs, context, gradients):
    error = np.max(np.abs(np.sum(one, axis=(0, 1, 2)) - np.sum(other, axis=(0, 1, 2)))) / max(size, 1e-30)
    if not error <= TOLERANCES[case.dtype]:
      return f"gradients by the {name} off by {error:.1e}"
  return None


def _equal_sums(case: Case, inputs: Inputs, context, gradients):
  """Returns, for keys and values, two arrays [B T N X] whose sums over B, T and N agree, and their size."""
  queries, keys, values, _, of_context = (
    None if array is None else np.asarray(array, np.float64) for array in inputs
  )
  of_queries, of_keys, of_values = (np.asarray(gradient, np.float64) for gradient in gradients[:3])

  def products(one, other):
    return np.sum(one * other, axis=-1, keepdims=True)

  by_keys = {
    "additive": (of_keys, of_queries),
    "cosine": (products(keys, of_keys), np.zeros((1, 1, 1, 1))),
  }.get(case.score, (products(keys, of_keys), products(queries, of_queries)))
  by_values = products(values, of_values), products(context, of_context)
  length_of_a_vector = math.sqrt(case.width)
  return (
    ("keys", *by_keys, np.linalg.norm(of_keys) * length_of_a_vector),
    ("values", *by_values, np.linalg.norm(of_values) * length_of_a_vector),
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
