"""Errors of wrong scores, masks, biases and normalizers of users."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks, positions

N, T, H = 7, 3, 11

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class FixedByHead(attention.Score):
  """A wrong score: it returns the scores of several heads."""

  def scores(self, query_features, key_features):
    scores = jnp.einsum("TH,SH->TS", query_features, key_features)
    return scores[None] * jnp.ones((N, 1, 1))


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class ManyRows(attention.Score):
  """A wrong score: the rows of one query would broadcast to any number."""

  def scores(self, queries, keys):
    return jnp.zeros((5, keys.shape[-2]), queries.dtype)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Misnamed(attention.Score):
  """A wrong score: its axes do not match its fields."""

  axes = {"scales": ""}
  scale: float = 1.0


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Numbers(masks.Mask):
  """A wrong mask: integers."""

  def mask_mod(self, t, s):
    return (s <= t).astype(jnp.int32)


class Unregistered(masks.Mask):
  """A mask that is not registered."""

  def mask_mod(self, t, s):
    return s <= t


class UnregisteredScore(attention.Score):
  """A score that is not registered."""


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Unfinished(attention.Normalizer):
  def weights(self, tile, state):
    return None


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class RowSums(attention.Normalizer):
  def weights(self, tile, state):
    return tile.scores.sum(-1)


@each_engine
@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"score": FixedByHead()}, r"FixedByHead.scores must return scores \[T S\] = .* got shape \(7, "),
    ({"score": ManyRows()}, r"ManyRows.scores must return .* \(3, 7\), got shape \(5, 7\)"),
    ({"score": Misnamed()}, r"Misnamed.axes must contain names of fields, got 'scales'"),
    ({"score": attention.SoftCap(UnregisteredScore(), 5.0)}, r"^UnregisteredScore must be registered"),
    ({"mask": Numbers()}, "Numbers.mask_mod must return booleans, got int32"),
    ({"mask": ~Numbers()}, "Numbers.mask_mod must return booleans, got int32"),
    ({"mask": Numbers() & masks.causal()}, "Numbers.mask_mod must return booleans, got int32"),
    ({"mask": Unregistered()}, "^Unregistered must be registered as a pytree"),
    ({"mask": Unregistered() & masks.causal()}, "^Unregistered must be registered as a pytree"),
    ({"normalizer": Unfinished()}, r"Unfinished.weights must return weights .* = \(3, 7\), got None"),
    ({"normalizer": RowSums()}, r"RowSums.weights must return weights .* = \(3, 7\), got shape \(3,\)"),
    (
      {"bias": positions.RelativePositionBias(jnp.float32(1.0))},
      r"RelativePositionBias.table must have axes \[... R\], got shape \(\)",
    ),
  ],
)
def test_wrong_components_raise(options, message, implementation):
  options = {"score": attention.ScaledDotProduct(), "implementation": implementation} | options
  with pytest.raises(ValueError, match=message):
    attention.attend(options.pop("score"), jnp.ones((3, 2)), *[jnp.ones((7, 2))] * 2, **options)


def test_wrong_uses_raise():
  with pytest.raises(ValueError, match="masks must be combined with &"):
    masks.causal() and masks.prefix(2)
  with pytest.raises(ValueError, match=r"^Unregistered must be registered as a pytree"):
    Unregistered().materialize(2, 3)
  with pytest.raises(TypeError, match=r"^UnregisteredScore must be a dataclass: add @dataclasses\.dataclass"):
    attention.register_pytree(UnregisteredScore)
  with pytest.raises(ValueError, match="SoftCap takes a score and a cap"):
    attention.SoftCap(5.0, attention.ScaledDotProduct())


@each_engine
@pytest.mark.parametrize("cap", [0, -1.0, float("nan"), np.float32(-1), np.float32([1, 0])])
def test_caps_must_be_positive(cap, implementation):
  def capped(vectors):
    score = attention.SoftCap(attention.ScaledDotProduct(), cap)
    return attention.attend(score, vectors, vectors, vectors, implementation=implementation)

  for function in (capped, jax.jit(capped)):  # inside jit it is known too
    with pytest.raises(ValueError, match="cap must be positive"):
      function(np.ones((2, T, H), np.float32))
