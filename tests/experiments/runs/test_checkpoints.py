"""Tests of experiments/runs/checkpoints.py: saving and restoring, retention, damage."""

import math
import random
import re
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

from experiments.runs.checkpoints import CheckpointError, Checkpoints

# Saving and restoring.


def test_restore_returns_what_was_saved(tmp_path, capfd):
  write(tmp_path / "checkpoints", {100: None, 200: 0.5})
  checkpoints = open_checkpoints(tmp_path / "checkpoints")
  assert_is_of(checkpoints.restore(like()), 200)
  assert_is_of(checkpoints.restore(state_of(0), 100), 100)
  assert capfd.readouterr() == ("", "")


def test_reading_creates_no_folder(tmp_path):
  checkpoints = open_checkpoints(tmp_path / "checkpoints")
  assert checkpoints.latest_step() is None
  assert checkpoints.best_step() is None
  assert checkpoints.restore(like()) is None
  assert not list(tmp_path.iterdir())


def test_missing_steps_are_errors(tmp_path):
  write(tmp_path / "checkpoints", {100: None, 200: None})
  checkpoints = open_checkpoints(tmp_path / "checkpoints")
  with pytest.raises(CheckpointError) as caught:
    checkpoints.restore(like(), 150)
  assert "step must be one of the checkpoints [200, 100]" in one_line(caught)
  assert "got 150" in one_line(caught)


# Retention.


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
  checkpoints = open_checkpoints(tmp_path, higher_is_better=higher_is_better)
  for step, score in enumerate(scores, start=1):
    checkpoints.save(step, {"step": jnp.int32(step)}, {}, None if score is None else sign * score)
  assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)
  assert steps_in(tmp_path) == kept
  checkpoints = open_checkpoints(tmp_path, higher_is_better=higher_is_better)
  assert (checkpoints.latest_step(), checkpoints.best_step()) == (len(scores), best)


def test_saved_steps_are_not_overwritten(tmp_path):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  checkpoints = open_checkpoints(folder)
  checkpoints.save(200, state_of(3), {"epoch": 9}, None)
  assert checkpoints.best_step() == 100
  checkpoints = open_checkpoints(folder)
  assert_is_of(checkpoints.restore(like()), 200)


# Damage.


def damage(path, kind, rng):
  data = bytearray(path.read_bytes())
  if kind == "deleted":
    path.unlink()
  elif kind == "truncated":
    path.write_bytes(data[: len(data) // 2])
  else:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def drop_last_line(path):
  path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def test_any_damage_is_detected(tmp_path, capfd):
  original = tmp_path / "whole"
  write(original / "checkpoints", {100: 0.5, 200: 0.25})
  files = sorted(path for path in (original / "checkpoints" / "200").rglob("*") if path.is_file())
  rng, detected = random.Random(0), set()
  for file in files:
    for kind in ["deleted", "truncated", *["flipped"] * 3]:
      run = tmp_path / "run"
      shutil.copytree(original, run)
      damage(run / file.relative_to(original), kind, rng)
      checkpoints = open_checkpoints(run / "checkpoints")
      checkpoint = checkpoints.restore(like())
      warning = capfd.readouterr().err
      if warning:
        detected.add((str(file.relative_to(original / "checkpoints" / "200")), kind))
        assert re.fullmatch(r"checkpoint of step 200 is damaged \(.*\); using step 100\n", warning)
        assert_is_of(checkpoint, 100)
        assert steps_in(run / "checkpoints") == [100]
        assert steps_in(run / "damaged") == [200]
      else:
        assert_is_of(checkpoint, 200)
        assert not (run / "damaged").exists()
      shutil.rmtree(run)
  names = {str(file.relative_to(original / "checkpoints" / "200")) for file in files}
  assert detected == {(name, kind) for name in names for kind in ("deleted", "truncated", "flipped")}


@pytest.mark.parametrize(
  ("damage", "reason"),
  [
    (lambda folder: (folder / "record.json").write_bytes(b"\xff"), "record.json has changed"),
    (lambda folder: (folder / "sha256").write_bytes(b"\xff"), "sha256 has changed"),
    (lambda folder: (folder / "sha256").write_text(""), "sha256 has changed"),
    (lambda folder: (folder / "sha256").unlink(), "sha256 is missing"),
    (lambda folder: drop_last_line(folder / "sha256"), "sha256 has changed"),
  ],
)
def test_damaged_folders_are_skipped(tmp_path, capfd, damage, reason):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  damage(folder / "200")
  checkpoints = open_checkpoints(folder)
  assert_is_of(checkpoints.restore(like()), 100)
  assert capfd.readouterr().err == f"checkpoint of step 200 is damaged ({reason}); using step 100\n"
  checkpoints.save(300, state_of(300), {}, None)
  assert steps_in(folder) == [100, 300]


def test_unfinished_checkpoints_are_ignored(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  (folder / "unfinished" / "state.tmp").mkdir(parents=True)
  assert open_checkpoints(folder).restore(like()) is None
  write(folder, {100: 0.5})
  assert steps_in(folder) == [100]
  shutil.copytree(folder / "100", folder / "unfinished")
  (folder / "unfinished" / "sha256").unlink()
  assert_is_of(open_checkpoints(folder).restore(like()), 100)
  assert capfd.readouterr().err == ""


def test_failed_restores_damage_nothing(tmp_path, capfd):
  write(tmp_path, {100: 0.5, 200: 0.25})
  checkpoints = open_checkpoints(tmp_path)
  with pytest.raises(CheckpointError, match="does not fit"):
    checkpoints.restore({"other": jax.ShapeDtypeStruct((3,), jnp.float32)})
  assert_is_of(checkpoints.restore(like(), 100), 100)
  assert capfd.readouterr().err == "" and steps_in(tmp_path) == [100, 200]


def test_several_damaged_steps_can_be_asked_for(tmp_path):
  write(tmp_path, dict.fromkeys((100, 200, 300), 0.5), keep=3)
  for step in (200, 300):
    (tmp_path / str(step) / "state" / "manifest.ocdbt").unlink()
  checkpoints = open_checkpoints(tmp_path, keep=3)
  assert [checkpoints.restore(like(), step).step for step in (200, 300)] == [100, 100]


def test_a_damaged_last_checkpoint_is_replaced_by_the_newest(tmp_path):
  write(tmp_path, {100: 0.5, 200: 0.1, 300: 0.9}, keep=3)
  (tmp_path / "300" / "state" / "manifest.ocdbt").unlink()
  for step, expected in (("last", 200), ("best", 100), (300, 200)):
    assert open_checkpoints(tmp_path, read_only=True).restore(like(), step).step == expected


def test_hidden_files_are_allowed(tmp_path, capfd):
  write(tmp_path, {100: 0.5, 200: 0.25})
  (tmp_path / "200" / "state" / ".DS_Store").touch()
  assert_is_of(open_checkpoints(tmp_path).restore(like()), 200)
  assert capfd.readouterr().err == ""


def test_damaged_best_is_replaced(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.9, 300: 0.1, 400: 0.2})
  (folder / "200" / "state" / "manifest.ocdbt").unlink()
  checkpoints = open_checkpoints(folder)
  assert checkpoints.best_step() == 200
  assert_is_of(checkpoints.restore(like(), 200), 400)
  assert checkpoints.best_step() == 400
  assert "checkpoint of step 200 is damaged" in capfd.readouterr().err


def test_read_only_folders_do_not_change(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "200" / "record.json").unlink()
  checkpoints = open_checkpoints(folder, read_only=True)
  assert_is_of(checkpoints.restore(like()), 100)
  assert "checkpoint of step 200 is damaged (record.json has changed)" in capfd.readouterr().err
  assert steps_in(folder) == [100, 200]


def test_deleted_checkpoints_are_skipped(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  reader = open_checkpoints(folder, read_only=True)
  shutil.rmtree(folder / "100")  # by the training process
  assert_is_of(reader.restore(like(), "best"), 200)
  assert capfd.readouterr().err == "checkpoint of step 100 was deleted; using step 200\n"


def test_all_damaged_is_an_error(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "100" / "record.json").write_text("{}")
  (folder / "200" / "state" / "manifest.ocdbt").write_bytes(b"")
  for _ in range(2):  # also the second time
    checkpoints = open_checkpoints(folder)
    with pytest.raises(CheckpointError) as caught:
      checkpoints.restore(like())
    assert one_line(caught) == (
      f"{folder}: no checkpoint can be used (that of step 100 is damaged (record.json has changed); that of "
      "step 200 is damaged (state/manifest.ocdbt has changed)); pass another --workdir to train from scratch"
    )
  (folder / "200" / "record.json").unlink()
  with pytest.raises(CheckpointError, match="no checkpoint can be used"):
    open_checkpoints(folder)
  assert steps_in(folder) == [100, 200]
  assert not (tmp_path / "damaged").exists()
  assert capfd.readouterr().err == ""


def test_damaged_records_are_reported_once(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.9, 200: 0.1, 300: 0.1})
  (folder / "100" / "record.json").write_text("{")
  for read_only, remaining in ((True, [100, 200, 300]), (False, [200, 300])):
    checkpoints = open_checkpoints(folder, read_only=read_only)
    assert_is_of(checkpoints.restore(like()), 300)
    warning = capfd.readouterr().err
    assert warning.startswith("checkpoint of step 100 is damaged (record.json has changed")
    assert warning.endswith("); using step 300\n")
    assert_is_of(checkpoints.restore(like(), 300), 300)
    assert capfd.readouterr().err == ""  # reported once
    assert steps_in(folder) == remaining
  assert steps_in(tmp_path / "damaged") == [100]


@pytest.mark.parametrize(
  ("change", "name", "actual", "expected"),
  [
    (
      {"kernel": jax.ShapeDtypeStruct((7, 499), jnp.float32)},
      "kernel",
      "float32[7, 500]",
      "float32[7, 499]",
    ),
    (
      {"kernel": jax.ShapeDtypeStruct((7, 500), jnp.bfloat16)},
      "kernel",
      "float32[7, 500]",
      "bfloat16[7, 500]",
    ),
    ({"bias": jax.ShapeDtypeStruct((3,), jnp.float32)}, "bias", "missing", "float32[3]"),
    ({"counts": None}, "counts/0", "uint8[13]", "missing"),
  ],
)
def test_other_models_are_errors(tmp_path, capfd, change, name, actual, expected):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  changed = shapes_of(state_of(0)._replace(params=state_of(0).params | change))
  checkpoints = open_checkpoints(folder)
  with pytest.raises(CheckpointError) as caught:
    checkpoints.restore(changed)
  assert one_line(caught) == (
    f"{folder / '200' / 'state'} does not fit the model: params/{name} must be {expected}, got {actual}"
  )
  assert steps_in(folder) == [100, 200]
  assert capfd.readouterr().err == ""


def test_files_are_errors(tmp_path):
  (tmp_path / "checkpoints").write_text("")
  with pytest.raises(CheckpointError) as caught:
    open_checkpoints(tmp_path / "checkpoints")
  assert one_line(caught) == f"{tmp_path / 'checkpoints'}: expected a folder, got a file"


def test_other_folders_are_left_alone(tmp_path):
  write(tmp_path, {100: 0.5})
  shutil.copytree(tmp_path / "100", tmp_path / "100.bak")
  (tmp_path / "2024-notes").mkdir()
  checkpoints = open_checkpoints(tmp_path)
  assert checkpoints.latest_step() == 100
  checkpoints.save(200, state_of(200), {}, None)
  assert {path.name for path in tmp_path.iterdir()} == {"100", "200", "100.bak", "2024-notes"}


def test_interrupted_deletions_are_finished(tmp_path, capfd):
  write(tmp_path, {100: 0.5, 200: 0.4})
  shutil.copytree(tmp_path / "100", tmp_path / "deleted.50")
  checkpoints = open_checkpoints(tmp_path)
  assert_is_of(checkpoints.restore(like()), 200)
  checkpoints.save(300, state_of(300), {}, 0.1)
  assert {path.name for path in tmp_path.iterdir()} == {"100", "200", "300"}
  assert capfd.readouterr().err == ""


def test_checkpoints_deleted_while_they_are_read_are_skipped(tmp_path, capfd, monkeypatch):
  write(tmp_path, {100: 0.5, 200: 0.4})
  read = Checkpoints._read

  def delete_and_read(self, step, target):
    if step == 200:
      shutil.rmtree(tmp_path / "200")
    return read(self, step, target)

  monkeypatch.setattr(Checkpoints, "_read", delete_and_read)
  assert_is_of(open_checkpoints(tmp_path, read_only=True).restore(like()), 100)
  assert capfd.readouterr().err == "checkpoint of step 200 was deleted; using step 100\n"


def test_the_best_is_replaced_by_the_next_best(tmp_path, capfd):
  write(tmp_path, {100: 0.5, 200: 0.9, 300: 0.7, 400: 0.1})
  (tmp_path / "200" / "record.json").touch()
  (tmp_path / "200" / "state" / "manifest.ocdbt").unlink()
  checkpoints = open_checkpoints(tmp_path, read_only=True)
  assert_is_of(checkpoints.restore(like(), "best"), 300)
  assert capfd.readouterr().err.endswith("using step 300\n")
