"""Compares the training speed and memory of this library's translators with PyTorch.

    python -m experiments.compare_torch

The recurrent model has a bidirectional GRU encoder, and a GRU decoder with additive attention. It has two
PyTorch versions: a straightforward one, and an optimized one (see peers/torch_translator.py). The
Transformer has two encoder and two decoder layers. All start from the same parameters and use the same batch.
Before they are timed, their losses are compared. Memory is that of a step besides parameters and optimizer,
on Linux. It needs PyTorch (pip install torch).
"""

import importlib.util
import itertools
from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from configs import base
from experiments.benchmarks.timing import in_turn, peak_growth_mib
from experiments.cli import flags as cli
from experiments.cli.messages import markdown
from experiments.data.batches import Batch, make_batch
from experiments.data.vocabularies import NUM_SPECIAL_IDS
from experiments.devices.sharding import make_mesh, place_batch
from experiments.learning.model import make_model
from experiments.learning.optimizer import make_schedule
from experiments.learning.step import init_state, make_rngs, make_step, make_train_spec, zero_sums

_BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "number of sentence pairs per batch", lower_bound=1)
_LENGTH = flags.DEFINE_integer("length", 16, "tokens per sentence, including the end", lower_bound=2)
_VOCABULARY = flags.DEFINE_integer("vocabulary", 5893, "vocabulary size of each language", lower_bound=8)
_FEATURES = flags.DEFINE_integer("features", 512, "width of the models; embeddings have half", lower_bound=8)
_REPEATS = flags.DEFINE_integer("repeats", 7, "number of timed runs", lower_bound=1)

_NUM_HEADS, _NUM_LAYERS = 4, 2  # of the Transformer

# Maximum difference of losses, due to rounding.
_TOLERANCE = 1e-3


def main() -> None:
  if importlib.util.find_spec("torch") is None:
    raise cli.UsageError("compare_torch needs PyTorch: pip install torch")
  if _FEATURES.value % (2 * _NUM_HEADS):
    raise cli.UsageError(f"--features must be a multiple of {2 * _NUM_HEADS}, got {_FEATURES.value}")
  # Sentences of random words and full length.
  shape = 2, _BATCH_SIZE.value, _LENGTH.value - 1
  sources, targets = np.random.default_rng(0).integers(NUM_SPECIAL_IDS, _VOCABULARY.value, shape)
  batch = make_batch(sources, targets, source_length=_LENGTH.value, target_length=_LENGTH.value)
  rows = []
  for kind in ("recurrent", "transformer"):
    config = base.Config(model=_model_config(kind))
    jax_step, params = _make_jax_step(config, batch)
    steps = {"attention": jax_step}
    if kind == "recurrent":
      steps["PyTorch, straightforward"] = _make_torch_step(config, batch, params, optimized=False)
    steps["PyTorch, optimized"] = _make_torch_step(config, batch, params, optimized=True)
    rows += [[kind, *row] for row in _measure(steps)]
  columns = "s/step (quartiles)", "target tokens/s", "speedup of attention", "memory of a step, MiB"
  print(markdown(["model", "version", *columns], rows))


def _model_config(kind: str) -> base.Model:
  features = _FEATURES.value
  if kind == "recurrent":
    return base.Model(embed_dim=features // 2, features=features)
  return base.Model(
    encoder="transformer",
    decoder="transformer",
    features=features,
    num_heads=_NUM_HEADS,
    mlp_dim=2 * features,
    num_layers=_NUM_LAYERS,
    num_decoder_layers=_NUM_LAYERS,
  )


def _measure(steps: dict[str, Callable[[], float]]) -> list[list[str]]:
  """Returns the rows of a table: name, time, tokens per second, speedup of attention, and memory.

  Raises:
    RuntimeError: if the losses differ.
  """
  for number in range(3):  # the first step compiles; its learning rate is 0, so the third shows an update
    losses = {name: step() for name, step in steps.items()}
    if not max(losses.values()) - min(losses.values()) <= _TOLERANCE:  # also if a loss is NaN
      raise RuntimeError(f"losses of step {number} must be equal within {_TOLERANCE}, got {losses}")
  seconds = in_turn(steps, _REPEATS.value)
  rows = []
  for name, times in seconds.items():
    low, median, high = np.percentile(times, (25, 50, 75))
    tokens, ratio = _BATCH_SIZE.value * _LENGTH.value / median, median / np.median(seconds["attention"])
    memory = peak_growth_mib(steps[name])
    speedup = "" if name == "attention" else f"{ratio:.2f}×"
    time = f"{median:.3f} ({low:.3f} to {high:.3f})"
    rows.append([name, time, f"{tokens:,.0f}", speedup, "-" if memory is None else f"{memory:,.0f}"])
  return rows


def _make_jax_step(config: base.Config, batch: Batch):
  """Returns a function that runs a training step and returns its loss, and the initial parameters."""
  sizes = {"source_vocabulary_size": _VOCABULARY.value, "target_vocabulary_size": _VOCABULARY.value}
  mesh = make_mesh()
  spec, rngs = make_train_spec(config, make_model(config.model, **sizes), mesh), make_rngs(config.seed)
  state, placed = init_state(spec, rngs.params), place_batch(batch, mesh)
  params = jax.tree.map(np.array, state.params)

  def step() -> float:
    nonlocal state
    state, _ = make_step(spec)(state._replace(sums=zero_sums()), placed, rngs.dropout)
    return float(state.sums.loss / state.sums.tokens)

  return step, params


def _make_torch_step(config: base.Config, batch: Batch, params, *, optimized: bool) -> Callable[[], float]:
  """Returns a function that runs a training step in PyTorch and returns its loss."""
  import torch

  from experiments.peers import torch_transformer, torch_translator

  vocabularies = _VOCABULARY.value, _VOCABULARY.value
  model = config.model
  if model.decoder == "recurrent":
    widths = model.embed_dim, model.features
    module = torch_translator.Translator(vocabularies, *widths, optimized=optimized)
    torch_translator.load(module, params)
  else:
    sizes = model.features, model.num_heads, model.mlp_dim, model.num_layers, _LENGTH.value
    module = torch_transformer.Transformer(vocabularies, *sizes)
    torch_transformer.load(module, params)
  optimizer = torch.optim.Adam(module.parameters(), lr=config.train.learning_rate)
  schedule = make_schedule(config.train)
  sources, inputs, targets = (
    torch.tensor(array).long() for array in (batch.sources, batch.inputs, batch.targets)
  )
  lengths = torch.tensor(batch.source_lengths).long()
  step_numbers = itertools.count()

  def step() -> float:
    for group in optimizer.param_groups:
      group["lr"] = float(schedule(next(step_numbers)))
    logits = module(sources, lengths, inputs)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), config.train.grad_clip_norm)
    optimizer.step()
    optimizer.zero_grad()  # at the end, so that gradients count as memory of the step
    return loss.item()

  return step


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
