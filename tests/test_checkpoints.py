"""Tests of experiments/translation/checkpoints.py."""

import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import tempfile
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts  # noqa: F401 (it tells the server of forks to import JAX once)
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from experiments.translation.checkpoints import CheckpointError, Checkpoints, DamagedError
from experiments.translation.integrity import integrity
from experiments.translation.mistakes import Mistake

_SERVER = multiprocessing.get_context("forkserver")


class State(NamedTuple):
  step: Any
  params: Any
  rng: Any


def state_of(step, size=(7, 500)):
  """Returns a state, of arrays of many types, that is another at every step."""
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
  """Returns all that a state holds, comparable with ==."""
  arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
  return jax.tree.structure(state), [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def open_checkpoints(folder, **options):
  return Checkpoints(folder, **({"higher_is_better": True} | options))


def save(checkpoints, step, score=None):
  checkpoints.save(step, state_of(step), {"epoch": 0, "step": step}, score)


def write(folder, scores):
  """Writes checkpoints with scores."""
  with open_checkpoints(folder) as checkpoints:
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
  assert isinstance(caught.value, Mistake)
  assert "\n" not in text
  return text


# What is written is read


def test_a_checkpoint_is_read_as_it_was_written(tmp_path, capfd):
  write(tmp_path / "checkpoints", {100: None, 200: 0.5})
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert_is_of(checkpoints.restore(like()), 200)
    assert_is_of(checkpoints.restore(state_of(0), 100), 100)
  assert capfd.readouterr() == ("", "")


def test_a_folder_without_checkpoints_has_none_and_is_not_made_by_looking(tmp_path):
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert checkpoints.latest_step() is None
    assert checkpoints.best_step() is None
    assert checkpoints.restore(like()) is None
  assert not list(tmp_path.iterdir())


def test_looking_writes_nothing(tmp_path):
  write(tmp_path / "checkpoints", {100: None, 200: 0.5})
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
    checkpoints.restore(like(), checkpoints.best_step())
  assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_step_without_a_checkpoint_is_an_error_that_names_those_there_are(tmp_path):
  write(tmp_path / "checkpoints", {100: None, 200: None})
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints, pytest.raises(CheckpointError) as caught:
    checkpoints.restore(like(), 150)
  assert "no checkpoint of step 150" in one_line(caught)
  assert "[200, 100]" in one_line(caught)


# Which are kept


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize(
  ("scores", "best", "kept"),
  [
    ([1.0], 1, [1]),
    ([1.0, 2.0, 3.0, 4.0], 4, [3, 4]),
    ([1.0, 4.0, 3.0, 2.0], 2, [2, 3, 4]),
    ([1.0, 4.0, 3.0, 4.0], 4, [3, 4]),
    ([1.0, 4.0, 3.0, 4.0, 2.0, 1.0], 4, [4, 5, 6]),
    ([4.0, 3.0, 2.0, 5.0, 1.0], 4, [4, 5]),
    ([None, None, None], 3, [2, 3]),
    ([1.0, None, None, None], 1, [1, 3, 4]),
    ([None, -1.0, None, None, 0.0, None, None], 5, [5, 6, 7]),
    ([math.nan, 1.0, math.nan, math.nan], 2, [2, 3, 4]),
    ([None, math.nan, math.nan], 1, [1, 2, 3]),
    ([math.nan, math.nan, math.nan], 3, [2, 3]),
    ([-math.inf, math.nan, None, None], 1, [1, 3, 4]),
  ],
)
def test_the_newest_two_and_the_best_are_kept(tmp_path, higher_is_better, scores, best, kept):
  sign = 1 if higher_is_better else -1
  with open_checkpoints(tmp_path, higher_is_better=higher_is_better) as checkpoints:
    for step, score in enumerate(scores, start=1):
      checkpoints.save(step, {"step": jnp.int32(step)}, {}, None if score is None else sign * score)
    assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)
  assert steps_in(tmp_path) == kept
  with open_checkpoints(tmp_path, higher_is_better=higher_is_better) as checkpoints:
    assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)


def test_a_step_that_has_a_checkpoint_keeps_it(tmp_path):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  with open_checkpoints(folder) as checkpoints:
    checkpoints.save(200, state_of(3), {"epoch": 9}, None)
    assert checkpoints.best_step() == 100
  with open_checkpoints(folder) as checkpoints:
    assert_is_of(checkpoints.restore(like()), 200)


def test_what_a_killed_process_did_not_delete_is_deleted_by_the_next(tmp_path):
  folder = tmp_path / "checkpoints"
  for step in (100, 200, 300):
    write(folder.with_name(str(step)), {step: 0.5})
    shutil.copytree(folder.with_name(str(step)) / str(step), folder / str(step))
  with open_checkpoints(folder) as checkpoints:
    checkpoints.delete_old()
  assert steps_in(folder) == [200, 300]


# Damage


def damage(path, kind, rng):
  data = bytearray(path.read_bytes())
  if kind == "deleted":
    path.unlink()
  elif kind == "cut":
    path.write_bytes(data[: len(data) // 2])
  else:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


# What orbax gives up at an error may end, and complain, at any time later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_to_any_file_is_told_or_changes_nothing(tmp_path, capfd):
  whole = tmp_path / "whole"
  write(whole / "checkpoints", {100: 0.5, 200: 0.25})
  files = sorted(path for path in (whole / "checkpoints" / "200").rglob("*") if path.is_file())
  rng, told = random.Random(0), set()
  for file in files:
    for kind in ["deleted", "cut", *["flipped"] * 3]:
      run = tmp_path / "run"
      shutil.copytree(whole, run)
      damage(run / file.relative_to(whole), kind, rng)
      with open_checkpoints(run / "checkpoints") as checkpoints:
        checkpoint = checkpoints.restore(like(), repairs=True)
      line = capfd.readouterr().err
      if line:
        told.add((str(file.relative_to(whole / "checkpoints" / "200")), kind))
        assert line.count("\n") == 1
        assert line.startswith("checkpoint of step 200 is damaged (")
        assert line.endswith("); going on from step 100\n")
        assert_is_of(checkpoint, 100)
        assert steps_in(run / "checkpoints") == [100]
        assert steps_in(run / "damaged") == [200]
      else:
        assert_is_of(checkpoint, 200)
        assert not (run / "damaged").exists()
      shutil.rmtree(run)
  # Not all files are read. Those that hold the arrays and the record are.
  data = max(files, key=lambda path: path.stat().st_size).relative_to(whole / "checkpoints" / "200")
  for name in ("record/metadata", "state/manifest.ocdbt", str(data)):
    assert {kind for path, kind in told if path == name} == {"deleted", "cut", "flipped"}


def test_files_that_are_whole_but_of_another_state_are_damage(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  shutil.rmtree(folder / "200" / "state")
  shutil.copytree(folder / "100" / "state", folder / "200" / "state")
  with open_checkpoints(folder) as checkpoints:
    assert_is_of(checkpoints.restore(like(), repairs=True), 100)
    assert checkpoints.latest_step() == 100
    save(checkpoints, 200)
  assert capfd.readouterr().err == (
    "checkpoint of step 200 is damaged (its arrays are not what was written); going on from step 100\n"
  )
  assert steps_in(folder) == [100, 200]


def test_the_best_that_is_damaged_is_passed_over_for_the_newest(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.9, 300: 0.1, 400: 0.2})
  (folder / "200" / "state" / "manifest.ocdbt").unlink()
  with open_checkpoints(folder) as checkpoints:
    assert checkpoints.best_step() == 200
    assert_is_of(checkpoints.restore(like(), 200, repairs=True), 400)
    assert checkpoints.best_step() == 400
  assert "checkpoint of step 200 is damaged" in capfd.readouterr().err


def test_who_only_reads_moves_nothing(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "200" / "record" / "metadata").unlink()
  with open_checkpoints(folder) as checkpoints:
    assert_is_of(checkpoints.restore(like()), 100)
  assert "checkpoint of step 200 is damaged" in capfd.readouterr().err
  assert steps_in(folder) == [100, 200]


def test_what_a_trainer_has_deleted_meanwhile_is_not_called_damaged(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  with open_checkpoints(folder) as reader:
    write(folder, {300: 0.75, 400: 0.5})
    assert steps_in(folder) == [300, 400]
    assert_is_of(reader.restore(like(), reader.best_step()), 300)
  with open_checkpoints(folder) as reader:
    write(folder, {500: 0.0, 600: 0.25, 700: 0.5})
    assert steps_in(folder) == [300, 600, 700]
    assert_is_of(reader.restore(like()), 700)
  assert capfd.readouterr().err == ""


def test_a_damaged_checkpoint_takes_no_other_ones_place(tmp_path):
  folder = tmp_path / "checkpoints"
  for _ in range(3):
    write(folder, {100: None, 200: None})
    (folder / "200" / "record" / "metadata").unlink()
    with open_checkpoints(folder) as checkpoints:
      assert_is_of(checkpoints.restore(like(), repairs=True), 100)
  assert sorted(path.name for path in (tmp_path / "damaged").iterdir()) == ["200", "200.1", "200.2"]


def test_none_that_is_whole_is_an_error_and_all_stay_where_they_are(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "100" / "record" / "metadata").write_text("{}")
  (folder / "200" / "state" / "manifest.ocdbt").write_bytes(b"")
  for _ in range(2):  # the next run does not begin anew either
    with open_checkpoints(folder) as checkpoints, pytest.raises(DamagedError) as caught:
      checkpoints.restore(like())
    assert f"{folder} holds no whole checkpoint (step 200: " in one_line(caught)
    assert "; step 100: its record" in one_line(caught)
  assert steps_in(folder) == [100, 200]
  assert not (tmp_path / "damaged").exists()
  assert capfd.readouterr().err == ""


def test_one_whose_record_is_damaged_is_not_deleted_for_it_may_be_the_best(tmp_path):
  write(tmp_path, {100: 0.9, 200: 0.1, 300: 0.1})
  (tmp_path / "100" / "record" / "metadata").write_text("{")
  write(tmp_path, {400: 0.1, 500: 0.2})
  assert steps_in(tmp_path) == [100, 400, 500]


@pytest.mark.parametrize(
  ("change", "name", "there", "here"),
  [
    (
      {"kernel": jax.ShapeDtypeStruct((7, 499), jnp.float32)},
      "['kernel']",
      "float32[7, 500]",
      "float32[7, 499]",
    ),
    (
      {"kernel": jax.ShapeDtypeStruct((7, 500), jnp.bfloat16)},
      "['kernel']",
      "float32[7, 500]",
      "bfloat16[7, 500]",
    ),
    ({"bias": jax.ShapeDtypeStruct((3,), jnp.float32)}, "['bias']", "missing", "float32[3]"),
    ({"counts": None}, "['counts'][0]", "uint8[13]", "missing"),
  ],
)
def test_another_version_of_the_model_is_no_damage(tmp_path, capfd, change, name, there, here):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  changed = shapes_of(state_of(0)._replace(params=state_of(0).params | change))
  with open_checkpoints(folder) as checkpoints, pytest.raises(CheckpointError) as caught:
    checkpoints.restore(changed)
  assert not isinstance(caught.value, DamagedError)
  assert one_line(caught) == (
    f"{folder / '200'} is of another version of the model: .params{name} is {there}, here {here}"
  )
  assert steps_in(folder) == [100, 200]
  assert capfd.readouterr().err == ""


# The number that damage changes


def reference_integrity(words):
  """Returns the number of arrays whose elements are given as unsigned integers."""

  def mix(x):
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16

  return (
    sum(
      mix(word ^ mix((position + mix(leaf)) % 2**32))
      for leaf, array in enumerate(words)
      for position, word in enumerate(array)
    )
    % 2**32
  )


def test_the_number_is_the_sum_of_mixed_words():
  state = state_of(3, size=(5, 17))
  kernel, scale = np.asarray(state.params["kernel"]), np.asarray(state.params["scale"])
  words = [
    [3],
    np.asarray(state.params["counts"][0]).tolist(),
    np.asarray(state.params["is_used"]).tolist(),
    kernel.ravel().view(np.uint32).tolist(),
    scale.view(np.uint16).tolist(),
    np.asarray(state.rng).tolist(),
  ]
  assert integrity(state) == reference_integrity(words)


def test_the_number_of_one_word_by_hand():
  # 2^16 ^ 1 = 65537; 65537 * 0x7FEB352D is 0xB518352D modulo 2^32, for 0x352D + 0x7FEB = 0xB518;
  # 0xB518352D >> 15 = 0x16A30, and 0xB518352D ^ 0x16A30 = 0xB5195F1D; times 0x846CA68B, modulo 2^32:
  product = 0xB5195F1D * 0x846CA68B % 2**32
  assert integrity([jnp.array([2**16], jnp.uint32)]) == product ^ (product >> 16)
  assert integrity([jnp.array([0], jnp.uint32)]) == 0  # mix(0) is 0, of the word, its place and its leaf
  assert integrity([]) == 0


def test_64_bits_are_two_words(float64):
  del float64
  value = np.array([1.5, -np.pi])
  assert integrity([jnp.asarray(value)]) == reference_integrity([value.view(np.uint32).tolist()])


def test_every_bit_changes_the_number():
  kernel = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  numbers = [integrity([kernel])]
  for position in range(kernel.size):
    for bit in range(32):
      words = kernel.copy().view(np.uint32)
      words.ravel()[position] ^= np.uint32(1) << np.uint32(bit)
      numbers.append(integrity([words.view(np.float32)]))
  assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool])
def test_elements_and_leaves_that_change_places_change_the_number(dtype):
  zeros, ones = jnp.zeros((2, 3), dtype), jnp.ones((2, 3), dtype)
  states = [
    [zeros, ones],
    [ones, zeros],
    [zeros.at[0, 0].set(ones[0, 0]), zeros],
    [zeros.at[0, 1].set(ones[0, 0]), zeros],
    [zeros.at[1, 0].set(ones[0, 0]), zeros],
    [zeros, zeros.at[0, 0].set(ones[0, 0])],
  ]
  assert len(set(map(integrity, states))) == len(states)


def test_minus_zero_and_another_nan_change_the_number():
  words = np.array([0, 1 << 31, 0x7FC00000, 0x7FC00001], np.uint32)
  assert len({integrity([word.view(np.float32)[None]]) for word in words}) == 4


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [("rows", "columns"), ("columns", None), (("rows", "columns"), None), ()])
def test_the_number_is_the_same_however_arrays_are_spread(axis_type, spec):
  mesh = jax.make_mesh((2, 4), ("rows", "columns"), axis_types=(axis_type, axis_type))
  array = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
  spread = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
  assert (
    integrity([spread]) == integrity([array]) == reference_integrity([array.ravel().view(np.uint32).tolist()])
  )


# Devices


def spread(state, mesh):
  """Returns the state with its kernel's columns spread over devices, and all else on every one."""
  columns, everywhere = (
    NamedSharding(mesh, PartitionSpec(None, "devices")),
    NamedSharding(mesh, PartitionSpec()),
  )
  return jax.tree.map(lambda leaf: jax.device_put(leaf, columns if leaf.ndim == 2 else everywhere), state)


def mesh_of(count):
  return jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def test_without_a_sharding_arrays_are_put_on_the_first_device(tmp_path):
  with open_checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, jax.device_put(state_of(1), jax.devices()[3]), {}, None)
    state = checkpoints.restore(like()).state
  assert {leaf.sharding for leaf in jax.tree.leaves(state)} == {SingleDeviceSharding(jax.devices()[0])}


def test_arrays_are_put_where_they_are_wanted(tmp_path):
  wanted = spread(state_of(0, (3, 12)), mesh_of(4))
  with open_checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, spread(state_of(1, (3, 12)), mesh_of(3)), {}, None)
    state = checkpoints.restore(wanted).state
  assert bits(state) == bits(state_of(1, (3, 12)))
  same = jax.tree.map(
    lambda leaf, like: leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim), state, wanted
  )
  assert jax.tree.all(same)


def in_child(function, *arguments, seconds=120):
  """Returns what a function returns in a process of its own."""
  with child(function, *arguments) as (process, connection):
    if not connection.poll(seconds):
      raise TimeoutError(f"{function.__name__} went on for {seconds} s")
    result = connection.recv()
    process.join()
  return result


@contextlib.contextmanager
def child(function, *arguments):
  ours, theirs = _SERVER.Pipe()
  process = _SERVER.Process(target=_send, args=(theirs, function, arguments))
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
def _stderr_in_a_pipe():
  """Gives a function that returns what the process has said; a pipe has no limit as files have."""
  reader, writer = os.pipe()
  os.set_blocking(reader, False)
  os.write(writer, b"|")  # for an empty pipe cannot be read
  os.dup2(writer, 2)
  yield lambda: os.read(reader, 2**16).decode("utf-8").removeprefix("|")


def _read_and_write_on(devices, theirs, ours):
  jax.config.update("jax_num_cpu_devices", devices)
  with open_checkpoints(theirs) as checkpoints:
    assert_is_of(checkpoints.restore(like()), 1)
  with open_checkpoints(ours) as checkpoints:
    state = spread(state_of(2), mesh_of(devices)) if devices > 1 else state_of(2)
    checkpoints.save(2, state, {"epoch": 0, "step": 2}, None)
  return jax.device_count()


@pytest.mark.parametrize("devices", [1, 5])
def test_checkpoints_are_read_with_another_number_of_devices(tmp_path, devices):
  with open_checkpoints(tmp_path / "here") as checkpoints:
    checkpoints.save(1, spread(state_of(1, (7, 500)), mesh_of(4)), {"epoch": 0, "step": 1}, None)
  assert in_child(_read_and_write_on, devices, tmp_path / "here", tmp_path / "there") == devices
  assert jax.device_count() == 8
  with open_checkpoints(tmp_path / "there") as checkpoints:
    assert_is_of(checkpoints.restore(like()), 2)
    assert_is_of(checkpoints.restore(spread(state_of(0), mesh_of(4))), 2)


def _spread_over_processes(step, mesh):
  """Returns weights of which each process has its part."""
  rows = NamedSharding(mesh, PartitionSpec("devices"))
  weights = np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32)
  return {"weights": jax.make_array_from_callback(weights.shape, rows, lambda part: weights[part])}


def _parts(checkpoint):
  return [np.asarray(shard.data) for shard in checkpoint.state["weights"].addressable_shards]


def _train_with_another(address, index, folder):
  """Saves in two processes, and reads after a file was lost that only one of them needs."""
  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(address, 2, index)
  mesh = mesh_of(4)
  with open_checkpoints(folder) as checkpoints:
    for step, score in ((1, 0.9), (2, 0.5), (3, None), (4, 0.1)):
      checkpoints.save(step, _spread_over_processes(step, mesh), {"step": step}, score)
    number = integrity(_spread_over_processes(4, mesh))
    before = checkpoints.restore(_spread_over_processes(0, mesh))
    multihost_utils.sync_global_devices("both have read")
    if index == 1:
      for path in (folder / "4" / "state" / "ocdbt.process_1" / "d").iterdir():
        path.unlink()
    multihost_utils.sync_global_devices("one has lost it")
    with _stderr_in_a_pipe() as said:
      after = checkpoints.restore(_spread_over_processes(0, mesh), repairs=True)
      told = [line for line in said().splitlines() if "checkpoint" in line]  # Gloo may speak too
    return number, (before.step, _parts(before)), (after.step, _parts(after)), checkpoints.best_step(), told


def test_several_processes_save_and_read_together_and_agree_on_damage(tmp_path):
  folder = tmp_path / "checkpoints"
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  with (
    child(_train_with_another, address, 0, folder) as (_, first),
    child(_train_with_another, address, 1, folder) as (_, second),
  ):
    assert first.poll(120)
    assert second.poll(120)
    results = [first.recv(), second.recv()]
  whole = {step: np.random.default_rng(step).normal(size=(8, 5000)).astype(np.float32) for step in (3, 4)}
  for index, (number, before, after, best, _) in enumerate(results):
    assert number == integrity({"weights": whole[4]})
    assert (before[0], after[0], best) == (4, 3, 1)
    for step, parts in (before, after):
      np.testing.assert_array_equal(np.concatenate(parts), whole[step][4 * index : 4 * index + 4])
  assert steps_in(folder) == [1, 3]
  assert steps_in(tmp_path / "damaged") == [4]
  assert [told for *_, told in results] == [
    ["checkpoint of step 4 is damaged (another process cannot read it); going on from step 3"],
    [],
  ]
  weights = {"weights": jax.ShapeDtypeStruct((8, 5000), jnp.float32)}
  with open_checkpoints(folder) as checkpoints:  # of one process
    np.testing.assert_array_equal(checkpoints.restore(weights).state["weights"], whole[3])


# Kills and full disks


def _weights_of(step):
  return {"weights": jnp.asarray(np.random.default_rng(step).normal(size=20_000).astype(np.float32))}


def _assert_has_weights_of(checkpoint, step):
  assert (checkpoint.step, checkpoint.position) == (step, {"step": step})
  assert bits(checkpoint.state) == bits(_weights_of(step))


def _train_until_killed(connection, folder):
  """Saves checkpoints for ever; says where it began once it has saved one."""
  with open_checkpoints(folder) as checkpoints:
    checkpoint = checkpoints.restore(shapes_of(_weights_of(0)))
    start = checkpoint.step if checkpoint else 0
    if checkpoint:
      _assert_has_weights_of(checkpoint, start)
    for step in itertools.count(start + 1):
      checkpoints.save(step, _weights_of(step), {"step": step}, (step * 7 % 5) / 5)
      if step == start + 1:
        connection.send(start)


def test_a_run_that_is_killed_at_any_moment_goes_on_from_a_whole_state(tmp_path):
  folder, rng, starts = tmp_path / "checkpoints", random.Random(0), []
  for _ in range(8):
    ours, theirs = _SERVER.Pipe()
    process = _SERVER.Process(target=_train_until_killed, args=(theirs, folder))
    process.start()
    theirs.close()
    try:
      assert ours.poll(60)
      starts.append(ours.recv())
      time.sleep(rng.uniform(0, 0.3))
    finally:
      process.kill()
      process.join()
  assert starts[0] == 0
  assert all(after > before for before, after in itertools.pairwise(starts))
  with open_checkpoints(folder) as checkpoints:
    last = checkpoints.latest_step()
    assert last > starts[-1]
    _assert_has_weights_of(checkpoints.restore(shapes_of(_weights_of(0))), last)
    checkpoints.save(last + 1, _weights_of(last + 1), {}, None)
  assert len(steps_in(folder)) <= 3  # what was left half written or half deleted is gone
  assert not (tmp_path / "damaged").exists()


def _save_with_files_of(limit, folder):
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  with _stderr_in_a_pipe() as said, open_checkpoints(folder) as checkpoints:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    return _error_of_saving(checkpoints), said()


def _restore_and_say(folder):
  with _stderr_in_a_pipe() as said, open_checkpoints(folder) as checkpoints:
    return checkpoints.restore(like()).step, said()


def _save_as_nobody(folder):
  with open_checkpoints(folder) as checkpoints:
    if os.geteuid() == 0:  # who may write everywhere
      os.seteuid(65534)
    return _error_of_saving(checkpoints)


def _error_of_saving(checkpoints):
  try:
    save(checkpoints, 300)
  except CheckpointError as error:
    return str(error)
  return "it was saved"


@pytest.mark.parametrize("limit", [0, 150, 4000])
def test_a_disk_that_is_full_is_told_in_one_line_and_loses_nothing(tmp_path, limit):
  write(tmp_path, {100: 0.5, 200: None})
  assert in_child(_save_with_files_of, limit, tmp_path) == (
    "could not write the checkpoint of step 300: File too large; the last whole one is of step 200",
    "",
  )
  with open_checkpoints(tmp_path) as checkpoints:
    save(checkpoints, 300)
    for step in (100, 200, 300):
      assert_is_of(checkpoints.restore(like(), step), step)


def test_a_folder_that_cannot_be_written_is_told_in_one_line():
  with tempfile.TemporaryDirectory() as name:  # for pytest's own are closed to others
    folder = pathlib.Path(name) / "checkpoints"
    write(folder, {100: None})
    folder.parent.chmod(0o755)
    folder.chmod(0o555)
    error = in_child(_save_as_nobody, folder)
    folder.chmod(0o755)
    assert error == (
      "could not write the checkpoint of step 300: Permission denied; the last whole one is of step 100"
    )


def test_a_file_in_the_way_is_told_in_one_line(tmp_path):
  (tmp_path / "run").write_text("")
  with (
    pytest.raises(CheckpointError) as caught,
    open_checkpoints(tmp_path / "run" / "checkpoints") as checkpoints,
  ):
    save(checkpoints, 100)
  assert "step 100: Not a directory; there is no other" in one_line(caught)


@pytest.mark.parametrize("name", ["state/manifest.ocdbt", "state/array_metadatas/process_0"])
def test_a_damaged_checkpoint_is_told_in_one_line_without_what_orbax_says(tmp_path, name):
  write(tmp_path / "checkpoints", {100: None, 200: None})
  damage(tmp_path / "checkpoints" / "200" / name, "cut", None)
  step, said = in_child(_restore_and_say, tmp_path / "checkpoints")
  assert step == 100
  assert said.count("\n") == 1
  assert said.startswith("checkpoint of step 200 is damaged (")


def test_what_is_no_fault_of_the_disk_keeps_its_error(tmp_path):
  with open_checkpoints(tmp_path) as checkpoints, pytest.raises(TypeError):
    checkpoints.save(1, state_of(1), {"position": object()}, None)
