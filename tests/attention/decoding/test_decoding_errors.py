"""Errors of greedy search, sampling and beam search: step functions, states, and tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import decoding

BOS, EOS = 1, 2
STATE, LOGITS = np.arange(5), jnp.zeros((5, 13))


def step(state, tokens):
  return state, LOGITS, None


def returns(*results):
  return lambda state, tokens: results if len(results) > 1 else results[0]


INVALID_STEPS = {
  "two results": (returns(STATE, LOGITS), r"step must return \(state, .*\), got 2 results"),
  "logits only": (returns(LOGITS), r"step must return \(state, .*\), got ShapeDtypeStruct"),
  "no logits": (returns(STATE, None, None), r"step must return logits \[B V\], with B=5, got None"),
  "logits of one": (returns(STATE, jnp.zeros(13), None), r"logits \[B V\], with B=5, got shape \(13,\)"),
  "integers": (returns(STATE, jnp.zeros((5, 13), int), None), "step must return floating-point logits"),
  "weights of two": (
    returns(STATE, LOGITS, jnp.zeros((2, 11))),
    r"weights \[B S\] or None, with B=5, got shape \(2, 11\)",
  ),
  "another state": (returns((STATE, 1), LOGITS, None), "state with the structure of its argument"),
  "a longer state": (
    returns(np.zeros((5, 2), int), LOGITS, None),
    r"state with the shapes of its argument, got state int32 \(5, 2\) for int32 \(5,\)",
  ),
}


@pytest.mark.parametrize("search", ["greedy", "sample", "beam_search"])
@pytest.mark.parametrize("name", INVALID_STEPS)
def test_invalid_step_functions_raise(search, name):
  function, message = INVALID_STEPS[name]
  with pytest.raises(ValueError, match=message):
    run_search(search, function)


@pytest.mark.parametrize("search", ["greedy", "sample", "beam_search"])
@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"eos_id": 13}, "eos_id must be below 13, the number of logits, got 13"),
    ({"bos_id": 13}, "bos_id must be below 13, the number of logits, got 13"),
    ({"bos_id": np.array([[1, 99]] * 5)}, "bos_id must be below 13"),
    ({"bos_id": -1}, "tokens of at least 0, and -1 only after them, got -1"),
    ({"bos_id": np.array([[-1, 4]] * 5)}, "tokens of at least 0, and -1 only after them, got"),
    ({"bos_id": np.array([[4, -1, 4]] * 5)}, "tokens of at least 0, and -1 only after them, got"),
    ({"bos_id": [[4], [4, 5]]}, r"bos_id must be .* integers, got \[\[4\], \[4, 5\]\]"),
    ({"bos_id": np.array([[4, EOS]] * 5)}, "bos_id must have eos_id=2 only as first token"),
    ({"bos_id": np.full((5, 5), 4)}, "max_length must be at least 4 for prompts of 5 tokens, got 3"),
  ],
)
def test_tokens_outside_the_vocabulary_raise(search, options, message):
  with pytest.raises(ValueError, match=message):
    run_search(search, step, **options)


def test_states_must_be_arrays():
  with pytest.raises(ValueError, match="state must be a pytree of arrays, got a leaf 'a'"):
    run_search("greedy", step, state="a")
  with pytest.raises(
    ValueError, match=r"arrays of state must have axes \[B ...\] with B=5, got shape \(2,\)"
  ):
    run_search("beam_search", step, state=jnp.zeros(2, int))


def run_search(name, step, state=STATE, **options):
  options = {"batch_size": 5, "max_length": 3, "bos_id": BOS, "eos_id": EOS} | options
  options |= {"rng": jax.random.key(0)} if name == "sample" else {}
  options |= {"beam_size": 2} if name == "beam_search" else {}
  return getattr(decoding, name)(step, state, **options)
