"""Attention on whole arrays in NumPy, and its derivatives, in float64: the reference for large sizes.

`reference` computes one pair at a time, which is slow for 512 queries and keys. Here each score has a formula
and a manual gradient. All functions accept complex numbers, whose imaginary parts are derivatives (complex
step method): d/dh f(x + h d) = Im f(x + i h d) / h. Since there is no difference, nothing cancels, and h can
be tiny (Squire and Trapp 1998, SIAM Review 40.1). The formula gives forward-mode derivatives, and the
gradient gives second derivatives.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

STEP = 1e-100


class Outputs(NamedTuple):
  context: np.ndarray  # [... T D]
  logsumexp: np.ndarray  # [... T], 0 for empty rows, whose -inf is a constant


class DotProduct:
  """scale * q . k"""

  def scores(q, k, scale):
    return scale * q @ _swap_last_axes(k)

  def gradients(q, k, d, scale):
    return scale * d @ k, scale * _swap_last_axes(d) @ q, {"scale": np.sum(d * (q @ _swap_last_axes(k)))}


class Additive:
  """score_vector . tanh(q + k)"""

  def scores(q, k, score_vector):
    return _tanh(q[..., :, None, :] + k[..., None, :, :]) @ score_vector

  def gradients(q, k, d, score_vector):
    tanh = _tanh(q[..., :, None, :] + k[..., None, :, :])
    of_vector = np.sum(d[..., None] * tanh, axis=tuple(range(tanh.ndim - 1)))
    slopes = d[..., None] * (1 - tanh**2) * score_vector
    return slopes.sum(-2), slopes.sum(-3), {"score_vector": of_vector}


class Bilinear:
  """q . matrix . k"""

  def scores(q, k, matrix):
    return q @ matrix @ _swap_last_axes(k)

  def gradients(q, k, d, matrix):
    of_matrix = _swap_last_axes(q) @ (d @ k)
    of_matrix = of_matrix.reshape(-1, *matrix.shape).sum(0)
    return d @ k @ matrix.T, _swap_last_axes(d) @ (q @ matrix), {"matrix": of_matrix}


class Cosine:
  """scale * q . k / (|q| |k|)"""

  def scores(q, k, scale):
    return scale * _unit(q) @ _swap_last_axes(_unit(k))

  def gradients(q, k, d, scale):
    along, to = _unit(q), _unit(k)
    of_queries = _through_unit(q, scale * d @ to)
    of_keys = _through_unit(k, scale * _swap_last_axes(d) @ along)
    return of_queries, of_keys, {"scale": np.sum(d * (along @ _swap_last_axes(to)))}


class NegativeDistance:
  """-temperature * |q - k|^2"""

  def scores(q, k, temperature):
    return -temperature * NegativeDistance.squares(q, k)

  def squares(q, k):
    return _total(q**2) + _swap_last_axes(_total(k**2)) - 2 * q @ _swap_last_axes(k)

  def gradients(q, k, d, temperature):
    of_queries = -2 * temperature * (q * _total(d) - d @ k)
    of_keys = -2 * temperature * (k * _total(_swap_last_axes(d)) - _swap_last_axes(d) @ q)
    return of_queries, of_keys, {"temperature": np.sum(-d * NegativeDistance.squares(q, k))}


FORMULAS = {
  "scaled_dot_product": DotProduct,
  "additive": Additive,
  "bilinear": Bilinear,
  "cosine": Cosine,
  "user_defined": NegativeDistance,
}


def attend(kind: str, inputs: Any, allowed: np.ndarray) -> Outputs:
  """Returns the outputs for queries [... T H], keys [... S H] and values [... S D].

  Args:
    kind: of the score.
    inputs: NumPy arrays, named as the arguments of `attend`.
    allowed: which pairs may attend, booleans [T S].
  """
  return _attend(kind, inputs, allowed)[0]


def gradients(kind: str, inputs: Any, allowed: np.ndarray, of: Outputs) -> Any:
  """Returns the gradients of sum(of * outputs), a tree like the inputs."""
  outputs, weights = _attend(kind, inputs, allowed)
  of_weights = of.context @ _swap_last_axes(inputs.values)
  of_scores = weights * (of_weights - _total(of.context * outputs.context) + of.logsumexp[..., None])
  queries, keys, parameters = FORMULAS[kind].gradients(
    inputs.queries, inputs.keys, of_scores, **inputs.parameters
  )
  return inputs._replace(
    queries=queries, keys=keys, values=_swap_last_axes(weights) @ of.context, parameters=parameters
  )


def derivative(function: Any, inputs: Any, direction: Any) -> Any:
  """Returns the derivative of a function of NumPy trees along a direction."""
  moved = jax.tree.map(lambda x, d: x + 1j * STEP * np.asarray(d), inputs, direction)
  return jax.tree.map(lambda leaf: np.imag(leaf) / STEP, function(moved))


def _attend(kind, inputs, allowed):
  scores = FORMULAS[kind].scores(inputs.queries, inputs.keys, **inputs.parameters)
  largest = np.max(np.where(allowed, scores.real, -np.inf), axis=-1, keepdims=True)
  largest = np.where(np.isfinite(largest), largest, 0)
  exponentials = np.where(allowed, np.exp(np.where(allowed, scores - largest, 0)), 0)
  total = _total(exponentials)
  is_empty = total == 0
  weights = exponentials / np.where(is_empty, 1, total)
  logsumexp = np.where(is_empty, 0, np.log(np.where(is_empty, 1, total)) + largest)
  return Outputs(weights @ inputs.values, logsumexp[..., 0]), weights


def _tanh(array):
  """Returns tanh; NumPy's tanh of complex numbers is ten times slower."""
  tanh = np.tanh(array.real)
  return tanh + 1j * (1 - tanh**2) * array.imag if np.iscomplexobj(array) else tanh


def _swap_last_axes(array):
  return np.swapaxes(array, -1, -2)


def _total(array):
  return np.sum(array, axis=-1, keepdims=True)


def _unit(vectors):
  return vectors / np.sqrt(_total(vectors**2))


def _through_unit(vectors, of_unit):
  unit = _unit(vectors)
  return (of_unit - unit * _total(unit * of_unit)) / np.sqrt(_total(vectors**2))
