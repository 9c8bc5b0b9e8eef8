"""Helpers for tests of checkpoints: states, directories, and processes that write or read them."""

import contextlib
import functools
import multiprocessing
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.cli.errors import UserError
from experiments.runs.checkpoints import Checkpoints
from helpers import scripts  # noqa: F401 (it tells the server of forks to import JAX once)

SERVER = multiprocessing.get_context("forkserver")


class State(NamedTuple):
  step: Any
  params: Any
  rng: Any


def state_of(step, size=(7, 500)):
  """Returns a state with arrays of many types that differ at each step."""
  rng = np.random.default_rng(step)
  weights = rng.normal(size=size).astype(np.float32)
  params = {
    "kernel": jnp.asarray(weights),
    "scale": jnp.asarray(weights[0, :11]).astype(jnp.bfloat16),
    "counts": (jnp.arange(13, dtype=jnp.uint8) + np.uint8(step % 7), None, ()),
    "is_used": jnp.asarray(weights[:, 0] > 0),
  }
  return State(jnp.int32(step), params, jax.random.key_data(jax.random.key(step)))


def shapes_of(state):
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


@functools.cache
def like():
  return shapes_of(state_of(0))


def bits(state):
  """Returns all contents of a state, comparable with ==."""
  arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
  return jax.tree.structure(state), [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def open_checkpoints(folder, **options):
  return Checkpoints(folder, **({"higher_is_better": True} | options))


def save(checkpoints, step, score=None):
  checkpoints.save(step, state_of(step), {"epoch": 0, "step": step}, score)


def write(folder, scores, keep=2):
  """Writes checkpoints with metrics."""
  checkpoints = open_checkpoints(folder, keep=keep)
  for step, score in scores.items():
    save(checkpoints, step, score)


def steps_in(folder):
  return sorted(int(path.name) for path in folder.iterdir())


def assert_is_of(checkpoint, step):
  assert checkpoint.step == step
  assert bits(checkpoint.state) == bits(state_of(step))
  assert checkpoint.position == {"epoch": 0, "step": step}


def one_line(caught):
  text = str(caught.value)
  assert isinstance(caught.value, UserError)
  assert "\n" not in text
  return text


def in_child(function, *arguments, seconds=120):
  """Runs a function in another process and returns its result."""
  with child(function, *arguments) as (process, connection):
    if not connection.poll(seconds):
      raise TimeoutError(f"{function.__name__} went on for {seconds} s")
    result = connection.recv()
    process.join()
  return result


@contextlib.contextmanager
def child(function, *arguments):
  ours, theirs = SERVER.Pipe()
  process = SERVER.Process(target=_send, args=(theirs, function, arguments))
  process.start()
  theirs.close()
  try:
    yield process, ours
  finally:
    process.kill()
    process.join()


def _send(connection, function, arguments):
  try:
    connection.send(function(*arguments))
  except Exception as error:
    connection.send(repr(error))
    raise


@contextlib.contextmanager
def stderr_in_a_pipe():
  """Returns a function that reads the standard error of the process. Pipes are not limited by file size
  limits.
  """
  reader, writer = os.pipe()
  os.set_blocking(reader, False)
  os.write(writer, b"|")  # an empty pipe cannot be read
  os.dup2(writer, 2)
  yield lambda: os.read(reader, 2**16).decode("utf-8").removeprefix("|")
