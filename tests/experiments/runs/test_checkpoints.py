"""Tests of experiments/runs/checkpoints.py: what is written is read, which are kept, damage."""

import math
import random
import shutil

import jax
import jax.numpy as jnp
import pytest
from helpers.checkpoint_files import (
  assert_is_of,
  like,
  one_line,
  open_checkpoints,
  shapes_of,
  state_of,
  steps_in,
  write,
)

from experiments.runs.checkpoints import _METADATA, CheckpointError

# What is written is read


def test_restore_returns_what_was_saved(tmp_path, capfd):
  write(tmp_path / "checkpoints", {100: None, 200: 0.5})
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert_is_of(checkpoints.restore(like()), 200)
    assert_is_of(checkpoints.restore(state_of(0), 100), 100)
  assert capfd.readouterr() == ("", "")


def test_reading_creates_no_folder(tmp_path):
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert checkpoints.latest_step() is None
    assert checkpoints.best_step() is None
    assert checkpoints.restore(like()) is None
  assert not list(tmp_path.iterdir())


def test_missing_steps_are_named(tmp_path):
  write(tmp_path / "checkpoints", {100: None, 200: None})
  with open_checkpoints(tmp_path / "checkpoints") as checkpoints, pytest.raises(CheckpointError) as caught:
    checkpoints.restore(like(), 150)
  assert "no checkpoint of step 150" in one_line(caught)
  assert "[200, 100]" in one_line(caught)


# Which are kept


@pytest.mark.parametrize("higher_is_better", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
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
    ([None, -1.0, None, None, 0.0, None, None], 5, [2, 5, 6, 7]),
    ([math.nan, 1.0, math.nan, math.nan], 2, [2, 3, 4]),
    ([None, math.nan, math.nan], 1, [1, 2, 3]),
    ([math.nan, math.nan, math.nan], 3, [2, 3]),
    ([-math.inf, math.nan, None, None], 1, [1, 2, 3, 4]),
  ],
)
def test_newest_and_best_are_kept(tmp_path, higher_is_better, scores, best, kept):
  sign = 1 if higher_is_better else -1
  with open_checkpoints(tmp_path, higher_is_better=higher_is_better) as checkpoints:
    for step, score in enumerate(scores, start=1):
      checkpoints.save(step, {"step": jnp.int32(step)}, {}, None if score is None else sign * score)
    assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)
  assert steps_in(tmp_path) == kept
  with open_checkpoints(tmp_path, higher_is_better=higher_is_better) as checkpoints:
    assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)


def test_saved_steps_are_kept(tmp_path):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  with open_checkpoints(folder) as checkpoints:
    checkpoints.save(200, state_of(3), {"epoch": 9}, None)
    assert checkpoints.best_step() == 100
  with open_checkpoints(folder) as checkpoints:
    assert_is_of(checkpoints.restore(like()), 200)


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


def test_any_damage_is_detected(tmp_path, capfd):
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
        checkpoint = checkpoints.restore(like())
      line = capfd.readouterr().err
      if line:
        told.add((str(file.relative_to(whole / "checkpoints" / "200")), kind))
        assert line.count("\n") == 1
        assert line.startswith("checkpoint of step 200 is damaged (")
        assert line.endswith("); using step 100\n")
        assert_is_of(checkpoint, 100)
        assert steps_in(run / "checkpoints") == [100]
        assert steps_in(run / "damaged") == [200]
      else:
        assert_is_of(checkpoint, 200)
        assert not (run / "damaged").exists()
      shutil.rmtree(run)
  names = {str(file.relative_to(whole / "checkpoints" / "200")) for file in files}
  names -= {"sha256"}  # without it, nothing is checked
  assert told >= {(name, kind) for name in names for kind in ("deleted", "cut", "flipped")}


def test_damaged_best_gives_the_newest(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.9, 300: 0.1, 400: 0.2})
  (folder / "200" / "default" / "manifest.ocdbt").unlink()
  with open_checkpoints(folder) as checkpoints:
    assert checkpoints.best_step() == 200
    assert_is_of(checkpoints.restore(like(), 200), 400)
    assert checkpoints.best_step() == 400
  assert "checkpoint of step 200 is damaged" in capfd.readouterr().err


def test_readers_move_nothing(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "200" / _METADATA).unlink()
  with open_checkpoints(folder, read_only=True) as checkpoints:
    assert_is_of(checkpoints.restore(like()), 100)
  assert "checkpoint of step 200 is damaged (_CHECKPOINT_METADATA has changed)" in capfd.readouterr().err
  assert steps_in(folder) == [100, 200]


def test_deleted_checkpoints_are_passed_over(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  with open_checkpoints(folder, read_only=True) as reader:
    shutil.rmtree(folder / "100")  # by a process that trains
    assert_is_of(reader.restore(like(), reader.best_step()), 200)
  assert capfd.readouterr().err == "checkpoint of step 100 is damaged (it was deleted); using step 200\n"


def test_all_damaged_is_an_error(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "100" / _METADATA).write_text("{}")
  (folder / "200" / "default" / "manifest.ocdbt").write_bytes(b"")
  for _ in range(2):  # the next run does not begin anew either
    with open_checkpoints(folder) as checkpoints, pytest.raises(CheckpointError) as caught:
      checkpoints.restore(like())
    assert f"{folder} holds no whole checkpoint (step 100: _CHECKPOINT_METADATA" in one_line(caught)
    assert "; step 200: default/manifest.ocdbt has changed)" in one_line(caught)
  assert steps_in(folder) == [100, 200]
  assert not (tmp_path / "damaged").exists()
  assert capfd.readouterr().err == ""


def test_damaged_records_are_reported_once(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.9, 200: 0.1, 300: 0.1})
  (folder / "100" / _METADATA).write_text("{")
  for read_only, left in ((True, [100, 200, 300]), (False, [200, 300])):
    with open_checkpoints(folder, read_only=read_only) as checkpoints:
      assert_is_of(checkpoints.restore(like()), 300)
      said = capfd.readouterr().err
      assert said.startswith("checkpoint of step 100 is damaged (_CHECKPOINT_METADATA has changed")
      assert said.endswith("); using step 300\n")
      assert_is_of(checkpoints.restore(like(), 300), 300)
      assert capfd.readouterr().err == ""  # once is enough
    assert steps_in(folder) == left
  assert steps_in(tmp_path / "damaged") == [100]


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
def test_other_models_are_not_damage(tmp_path, capfd, change, name, there, here):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  changed = shapes_of(state_of(0)._replace(params=state_of(0).params | change))
  with open_checkpoints(folder) as checkpoints, pytest.raises(CheckpointError) as caught:
    checkpoints.restore(changed)
  assert one_line(caught) == (
    f"{folder / '200'} is of another version of the model: .params{name} is {there}, here {here}"
  )
  assert steps_in(folder) == [100, 200]
  assert capfd.readouterr().err == ""


def test_files_are_no_folder(tmp_path):
  (tmp_path / "checkpoints").write_text("")
  with pytest.raises(CheckpointError) as caught:
    open_checkpoints(tmp_path / "checkpoints")
  assert one_line(caught) == f"{tmp_path / 'checkpoints'} must be a folder, got a file"
