"""A config of small runs."""

import dataclasses

from configs import base
from experiments.runs import workdir
from experiments.runs.record import Record, write_record

STEPS = 6
# The learning rate is so large that the validation loss rises: the first validation, of step 2, is the best.
CONFIG = base.Config(
  data=base.Data(num_buckets=1),  # one program for all
  model=base.Model(attention="none", embed_dim=2, features=3),
  train=base.Train(
    num_train_steps=STEPS,
    batch_size=2,
    learning_rate=0.3,
    schedule="constant",
    warmup_fraction=0.0,
    ema_decay=0.9,
    log_every_steps=3,
    eval_every_steps=2,
  ),
  evaluation=base.Evaluation(num_validation_examples=2, batch_size=2, max_decode_length=3),
)


def write_finished_run(folder, config, results):
  """Creates the folder of a finished run, and returns it."""
  folder.mkdir()
  write_record(folder, Record(config, {}, ""))
  workdir.write_json(folder / "results.json", results)
  return folder


def config_with(train=None, evaluation=None, **fields):
  """Returns CONFIG with other fields."""
  train = dataclasses.replace(CONFIG.train, **(train or {}))
  evaluation = dataclasses.replace(CONFIG.evaluation, **(evaluation or {}))
  return dataclasses.replace(CONFIG, train=train, evaluation=evaluation, **fields)
