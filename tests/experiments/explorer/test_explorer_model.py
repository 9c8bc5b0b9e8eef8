"""The translator of the page, in Node: translations, weights and errors agree with JAX."""

import copy

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import browser
from helpers.model_reference import random_parameters

from configs import base
from experiments.data.tasks import make_task
from experiments.explorer.live import live_model, unsupported_reason
from experiments.inference.translator import make_translator
from experiments.learning.model import make_task_model
from experiments.runs.restore import KeptCheckpoints

pytestmark = [pytest.mark.slow, browser.needs_node]

RUN = """
const { run, options } = given;
const initial = { beamSize: null, hypothesis: 0, hidden: [], forced: {}, overrides: {} };
const arrays = await explorer.decodeArrays(run.checkpoints[0].arrays, run.layout);
const translations = options.map((item) => explorer.translate(run, arrays, { ...initial, ...item }));
const values = [...Object.entries(arrays.vectors), ...Object.entries(arrays.matrices)];
const withLists = (item) => item && { ...item, weights: item.weights?.map((row) => [...row]) };
return {
  translations: translations.map(withLists),
  arrays: Object.fromEntries(values.map(([name, array]) => [name, [...(array.data ?? array)]])),
};
"""
TEXT = "the red cat sees the dog"
DEEP = {"num_layers": 2, "num_decoder_layers": 2, "residual": True, "layer_norm": True}


def make(attention, **options):
  """Returns the config of a model, and its translator, of random parameters."""
  config = base.Config(data=base.Data(num_buckets=1))  # one program for all lengths
  config.model = base.Model(attention=attention, embed_dim=13, features=17, **options)
  config.evaluation.max_decode_length = 23
  task = make_task(config)
  model = make_task_model(config, task)
  words = jnp.ones((1, 3), jnp.int32)
  params = random_parameters(model, words, words[:, 0], words)["params"]
  return config, make_translator(config, task, model, params)


def in_page(config, translator, options):
  """Returns the translations and the parameters in the page."""
  assert unsupported_reason(config, translator) == ""
  run = live_model(config, translator, KeptCheckpoints({7: translator.params}, 7), {})
  result = browser.in_node(RUN, {"run": run, "options": options})
  return result["translations"], result["arrays"]


@pytest.mark.parametrize(
  ("attention", "beam_size", "options"),
  [
    ("additive", 3, {}),
    ("dot_product", 1, {"attend_order": "after", "input_feeding": True}),
    ("scaled_dot_product", 3, DEEP | {"tied_embeddings": True, "qk_features": 11}),
    ("bilinear", 1, {"attend_order": "after", "num_decoder_layers": 2}),
    ("none", 3, {"tied_embeddings": True, "attend_order": "after", "input_feeding": True}),
  ],
)
def test_translations_are_those_of_jax(attention, beam_size, options):
  config, translator = make(attention, **options)
  translator = translator.with_decode_options(beam_size=beam_size)
  examples = [example for split in ("test", "length") for example in translator.task.examples(split, 20)]
  texts = [example.source_text for example in examples]
  desired = translator.translate(texts)
  assert len({round(item.score, 4) for item in desired}) > 20  # they depend on the sentence
  # The default is the beam size of the run.
  given = {} if beam_size == 3 else {"beamSize": beam_size}
  actual, _ = in_page(config, translator, [{"text": text, **given} for text in texts])
  for result, translation in zip(actual, desired, strict=True):
    assert tuple(result["tokens"]) == translation.tokens
    assert (result["text"], result["isTruncated"]) == (translation.text, translation.is_truncated)
    np.testing.assert_allclose(result["score"], translation.score, atol=1e-4)
    if attention == "none":
      assert result.get("weights") is None and translation.attention is None
    else:
      np.testing.assert_allclose(result["weights"], translation.attention, atol=1e-5)


@pytest.fixture(scope="module")
def cosine():
  """Returns a translator, and the translations and the arrays in the page."""
  config, translator = make("cosine", input_feeding=True, layer_norm=True, num_layers=2)
  example = translator.task.examples("test", 1)[0]
  forced = {str(t): token for t, token in enumerate([*example.target, "</s>"])}
  options = {
    "plain": {"text": TEXT},
    "changed": {"text": TEXT, "hidden": [1, 4], "overrides": {"2": "uniform", "3": 5, "4": 1}},
    "hidden": {"text": "the cat", "hidden": [0, 1, 2]},
    "forced": {"text": example.source_text, "forced": forced},
    "unknown": {"text": "zebra the ZEBRA gnu"},
    "empty": {"text": ""},
    "blank": {"text": " \t\u200b"},
    "emoji": {"text": "🦓 👩‍🚀"},
    "long": {"text": "the " * 450},
  }
  translations, arrays = in_page(config, translator, [*options.values()])
  return translator, dict(zip(options, translations, strict=True)), arrays


def test_parameters_are_exact(cosine):
  translator, _, arrays = cosine
  leaves = jax.tree_util.tree_leaves_with_path(translator.params)
  named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
  chex.assert_trees_all_equal(
    {name: np.array(array, np.float32) for name, array in arrays.items()},
    {name: np.ravel(leaf) for name, leaf in named.items()},
  )


def test_forced_tokens_are_teacher_forcing(cosine):
  translator, translations, _ = cosine
  example = translator.task.examples("test", 1)[0]
  (scored,) = translator.score([(example.source_text, example.target_text)])
  assert tuple(translations["forced"]["tokens"]) == example.target
  np.testing.assert_allclose(translations["forced"]["weights"], scored.attention, atol=1e-5)


def test_weights_can_be_changed(cosine):
  _, translations, _ = cosine
  plain, changed = (np.array(translations[name]["weights"]) for name in ("plain", "changed"))
  assert changed.shape[1] == 7
  assert (np.delete(changed, 4, axis=0)[:, [1, 4]] == 0).all()
  np.testing.assert_allclose(changed.sum(axis=1), 1, atol=1e-6)
  kept = [0, 2, 3, 5, 6]
  np.testing.assert_allclose(changed[0, kept], plain[0, kept] / plain[0, kept].sum(), atol=1e-5)
  np.testing.assert_allclose(changed[2, kept], 1 / len(kept), atol=1e-6)
  np.testing.assert_array_equal(changed[3], np.eye(7)[5])
  np.testing.assert_array_equal(changed[4], np.eye(7)[1])  # weights of 1 ignore the mask
  assert not np.any(translations["hidden"]["weights"])
  assert np.isfinite(translations["hidden"]["score"])


def test_odd_texts_are_translated(cosine):
  _, translations, _ = cosine
  assert translations["unknown"]["unknownTokens"] == ["zebra", "gnu"]
  assert translations["unknown"]["columns"] == ["zebra", "the", "zebra", "gnu", "</s>"]
  assert translations["empty"] is translations["blank"] is None
  assert "🦓" in translations["emoji"]["unknownTokens"]
  assert len(translations["long"]["columns"]) == 401 and translations["long"]["numDropped"] == 50


def test_unsupported_models_are_explained():
  config, translator = make("additive")
  unsupported = {"encoder": "transformer", "decoder": "transformer", "attention": "monotonic"}
  for name, value in (unsupported | {"normalizer": "sparsemax", "dtype": "bfloat16"}).items():
    changed = copy.deepcopy(config)
    setattr(changed.model, name, value)
    assert unsupported_reason(changed, translator) == f"config.model.{name} is {value}"
  config.train.train_eos = False
  assert unsupported_reason(config, translator) == "config.train.train_eos is False"
