"""Mask functions in a ring of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import attention
from attention import masks

pytestmark = pytest.mark.eight_devices

CLOSE = {"rtol": 4e-6, "atol": 4e-6}
SHARDED, SAME = PartitionSpec("data", "ring"), PartitionSpec()
WHOLE = 12  # positions on 3 devices


def run_sharded(function, in_specs=(SHARDED,), **options):
  mesh = jax.make_mesh((2, 3), ("data", "ring"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])
  return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=SHARDED, **options))


def in_ring(vectors, mask):
  return attention.ring_attention(
    attention.ScaledDotProduct(), *[vectors] * 3, axis_name="ring", mask=mask, block_sizes=(3, 3)
  )


def vectors_and_documents():
  rng = np.random.default_rng(0)
  return rng.normal(size=(2, WHOLE, 11)).astype(np.float32), jnp.asarray(
    np.sort(rng.integers(0, 3, size=WHOLE))
  )


def causal_within(documents):
  return masks.from_function(
    lambda t, s: (documents[t] == documents[s]) & (s <= t), lambda t, s: (s[0] <= t[1], False)
  )


def expected_within(vectors, documents):
  allowed = (documents[:, None] == documents[None]) & np.tri(WHOLE, dtype=bool)
  return attention.scaled_dot_product_attention(*[vectors] * 3, mask=allowed)


def test_ring_positions_are_global():
  vectors, documents = vectors_and_documents()
  actual = run_sharded(lambda vectors: in_ring(vectors, causal_within(documents)))(vectors)
  np.testing.assert_allclose(actual, expected_within(vectors, documents), **CLOSE)


@pytest.mark.parametrize("check_vma", [True, False])
def test_ring_closures_vary_over_devices(check_vma):
  vectors, documents = vectors_and_documents()

  def run(vectors, documents, is_declared):
    if is_declared:
      documents = jax.lax.pcast(documents, ("data", "ring"), to="varying")
    return in_ring(vectors, causal_within(documents))

  def sharded(is_declared):
    function = functools.partial(run, is_declared=is_declared)
    return run_sharded(function, (SHARDED, SAME), check_vma=check_vma)(vectors, documents)

  desired = expected_within(vectors, documents)
  np.testing.assert_allclose(sharded(True), desired, **CLOSE)
  if check_vma:
    with pytest.raises(ValueError, match=r"inside jax.shard_map, traced arrays .* jax.lax.pcast"):
      sharded(False)
  else:
    np.testing.assert_allclose(sharded(False), desired, **CLOSE)


def test_mixed_device_variation_raises():
  vectors, documents = vectors_and_documents()

  def run(vectors, documents):
    other = jax.lax.pcast(documents, "ring", to="varying")
    return in_ring(vectors, masks.from_function(lambda t, s: documents[t] == other[s]))

  with pytest.raises(ValueError, match=r"inside jax.shard_map, traced arrays .* jax.lax.pcast"):
    run_sharded(run, (SHARDED, SAME))(vectors, documents)
