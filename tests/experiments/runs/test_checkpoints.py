"""Checkpoints: saving and restoring, retention, damage."""

import math
import re
import shutil

import jax
import jax.numpy as jnp
import pytest
from helpers.checkpoint_files import LIKE, assert_is_of, open_checkpoints, save, state_of, steps_in, write

from experiments.runs.checkpoints import CheckpointError

MANIFEST = "state/manifest.ocdbt"


def test_restore_returns_what_was_saved(tmp_path, capfd):
  write(tmp_path, {100: None, 200: 0.5})
  checkpoints = open_checkpoints(tmp_path)
  assert_is_of(checkpoints.restore(LIKE), 200)
  assert_is_of(checkpoints.restore(state_of(0), 100), 100)
  with pytest.raises(CheckpointError, match=r"step must be one of the checkpoints \[200, 100\] .* got 150"):
    checkpoints.restore(LIKE, 150)
  # A saved step is not overwritten.
  checkpoints.save(200, state_of(3), {}, None)
  assert_is_of(open_checkpoints(tmp_path).restore(LIKE), 200)
  assert capfd.readouterr() == ("", "")


def test_reading_creates_no_folder(tmp_path):
  checkpoints = open_checkpoints(tmp_path / "checkpoints")
  assert checkpoints.latest_step() is checkpoints.best_step() is checkpoints.restore(LIKE) is None
  assert not list(tmp_path.iterdir())


KEPT = [
  (True, [1.0], 1, [1]),
  (True, [1.0, 4.0, 3.0, 2.0], 2, [2, 3, 4]),
  (False, [4.0, 1.0, 3.0, 2.0], 2, [2, 3, 4]),
  (True, [1.0, 4.0, 3.0, 4.0], 4, [3, 4]),  # the later of two
  (True, [None, None, None], 3, [2, 3]),
  (True, [None, -1.0, None, None, 0.0, None, None], 5, [2, 5, 6, 7]),
  (False, [None, math.nan, math.nan], 1, [1, 2, 3]),  # no score is better than NaN
  (True, [-math.inf, math.nan, None, None], 1, [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("higher_is_better", "scores", "best", "kept"), KEPT)
def test_newest_and_best_are_kept(tmp_path, higher_is_better, scores, best, kept):
  checkpoints = open_checkpoints(tmp_path, higher_is_better=higher_is_better)
  for step, score in enumerate(scores, start=1):
    checkpoints.save(step, {"step": jnp.int32(step)}, {}, score)
  assert steps_in(tmp_path) == kept
  newest = [step for step, score in enumerate(scores, start=1) if score is not None][-2:]
  for reader in (checkpoints, open_checkpoints(tmp_path, higher_is_better=higher_is_better)):
    assert (reader.latest_step(), reader.best_step()) == (len(scores), best)
    assert reader.newest_steps() == newest


DAMAGES = [
  (lambda folder: (folder / "record.json").write_bytes(b"\xff"), "record.json has changed"),
  (lambda folder: (folder / MANIFEST).unlink(), f"{MANIFEST} has changed"),
  (lambda folder: (folder / "state" / "more").touch(), "sha256 has changed"),
  (lambda folder: (folder / "sha256").write_bytes(b"\xff"), "sha256 has changed"),
  (lambda folder: (folder / "sha256").unlink(), "sha256 is missing"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_damaged_checkpoints_are_moved_away(tmp_path, capfd, damage, reason):
  folder = tmp_path / "checkpoints"
  write(folder, {100: 0.5, 200: 0.25})
  damage(folder / "200")
  for read_only, remaining in ((True, [100, 200]), (False, [100])):
    checkpoints = open_checkpoints(folder, read_only=read_only)
    assert_is_of(checkpoints.restore(LIKE), 100)
    assert capfd.readouterr().err == f"checkpoint of step 200 is damaged ({reason}); using step 100\n"
    assert_is_of(checkpoints.restore(LIKE), 100)
    assert capfd.readouterr().err == ""  # it is reported once
    assert steps_in(folder) == remaining
  assert steps_in(tmp_path / "damaged") == [200]
  save(checkpoints, 300)
  assert steps_in(folder) == [100, 300]


def test_damage_is_replaced_by_the_next(tmp_path):
  write(tmp_path, {100: 0.5, 200: 0.1, 300: 0.9, 400: 0.2}, keep=4)
  for step, asked, expected in ((400, "last", 300), (400, 400, 300), (300, "best", 100), (300, 300, 200)):
    (tmp_path / str(step) / MANIFEST).unlink(missing_ok=True)
    checkpoints = open_checkpoints(tmp_path, keep=4, read_only=True)
    assert checkpoints.restore(LIKE, asked).step == expected
  # Several can be asked for.
  checkpoints = open_checkpoints(tmp_path, keep=4)
  assert [checkpoints.restore(LIKE, step).step for step in (400, 300)] == [200, 200]
  assert checkpoints.best_step() == 100


def test_all_damaged_is_an_error(tmp_path, capfd):
  folder = tmp_path / "checkpoints"
  write(folder, {100: None, 200: None})
  (folder / "100" / "record.json").write_text("{}")
  (folder / "200" / MANIFEST).write_bytes(b"")
  reasons = f"100 is damaged (record.json has changed); that of step 200 is damaged ({MANIFEST} has changed)"
  line = f"{folder}: no checkpoint can be used (that of step {reasons}); pass another --workdir to train from"
  for _ in range(2):  # also the second time
    with pytest.raises(CheckpointError, match=f"^{re.escape(line)} scratch$"):
      open_checkpoints(folder).restore(LIKE)
  (folder / "200" / "record.json").unlink()
  with pytest.raises(CheckpointError, match="no checkpoint can be used"):
    open_checkpoints(folder)
  assert steps_in(folder) == [100, 200]
  assert not (tmp_path / "damaged").exists()
  assert capfd.readouterr().err == ""


def test_other_files_are_left_alone(tmp_path, capfd):
  write(tmp_path, {100: 0.5})
  (tmp_path / "100" / "state" / ".DS_Store").touch()
  shutil.copytree(tmp_path / "100", tmp_path / "100.bak")
  shutil.copytree(tmp_path / "100", tmp_path / "deleted.50")  # an interrupted deletion
  (tmp_path / "unfinished" / "state.tmp").mkdir(parents=True)
  (tmp_path / "2024-notes").mkdir()
  checkpoints = open_checkpoints(tmp_path)
  assert_is_of(checkpoints.restore(LIKE), 100)
  save(checkpoints, 200)
  assert {path.name for path in tmp_path.iterdir()} == {"100", "200", "100.bak", "2024-notes"}
  assert capfd.readouterr().err == ""


def test_deleted_checkpoints_are_skipped(tmp_path, capfd):
  write(tmp_path, {100: 0.5, 200: 0.25})
  reader = open_checkpoints(tmp_path, read_only=True)
  shutil.rmtree(tmp_path / "100")  # by the training process
  assert_is_of(reader.restore(LIKE, "best"), 200)
  assert capfd.readouterr().err == "checkpoint of step 100 was deleted; using step 200\n"


def test_checkpoints_may_be_deleted_while_read(tmp_path, capfd):
  class Deleting:
    """A shape that deletes a checkpoint after its files were checked."""

    shape, dtype = LIKE.step.shape, LIKE.step.dtype

    @property
    def sharding(self):
      shutil.rmtree(tmp_path / "200", ignore_errors=True)

  write(tmp_path, {100: 0.5, 200: 0.4})
  reader = open_checkpoints(tmp_path, read_only=True)
  assert_is_of(reader.restore(LIKE._replace(step=Deleting())), 100)
  assert capfd.readouterr().err == "checkpoint of step 200 was deleted; using step 100\n"


OTHER_MODELS = [
  ("kernel", (7, 499), jnp.float32, "kernel must be float32[7, 499], got float32[7, 500]"),
  ("kernel", (7, 500), jnp.bfloat16, "kernel must be bfloat16[7, 500], got float32[7, 500]"),
  ("bias", (3,), jnp.float32, "bias must be float32[3], got missing"),
  ("counts", (), jnp.float32, "counts must be float32[], got missing"),
]


@pytest.mark.parametrize(("name", "shape", "dtype", "message"), OTHER_MODELS)
def test_other_models_are_errors(tmp_path, capfd, name, shape, dtype, message):
  write(tmp_path, {100: None, 200: None})
  checkpoints = open_checkpoints(tmp_path)
  params = LIKE.params | {name: jax.ShapeDtypeStruct(shape, dtype)}
  line = re.escape(f"{tmp_path / '200' / 'state'} does not fit the model: params/{message}")
  with pytest.raises(CheckpointError, match=f"^{line}$"):
    checkpoints.restore(LIKE._replace(params=params))
  # It is not taken for damage.
  assert_is_of(checkpoints.restore(LIKE), 200)
  assert steps_in(tmp_path) == [100, 200]
  assert capfd.readouterr().err == ""


def test_files_instead_of_folders_are_errors(tmp_path):
  (tmp_path / "run").write_text("")
  with pytest.raises(CheckpointError, match=re.escape(f"{tmp_path / 'run'}: expected a folder, got a file")):
    open_checkpoints(tmp_path / "run")
  with pytest.raises(CheckpointError, match="step 100: Not a directory; there is no other"):
    save(open_checkpoints(tmp_path / "run" / "checkpoints"), 100)


def test_full_disks_are_found_before_writing(tmp_path, monkeypatch):
  write(tmp_path, {100: 0.5})
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
  line = "cannot write the checkpoint of step 200: No space left on device; the last one is of step 100"
  with pytest.raises(CheckpointError, match=f"^{line}$"):
    save(open_checkpoints(tmp_path), 200)
  assert_is_of(open_checkpoints(tmp_path).restore(LIKE), 100)


def test_other_errors_are_raised(tmp_path):
  position = {}
  position["self"] = position
  with pytest.raises(ValueError, match="Circular reference"):
    open_checkpoints(tmp_path).save(1, state_of(1), position, None)
