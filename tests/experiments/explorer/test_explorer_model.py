"""The translator of the page, in Node: tokens, scores and weights agree with JAX."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import browser, fixtures, model_reference

from configs import base
from experiments.data.tasks import make_task
from experiments.explorer.live import ATTENTION_TYPES, live_model, unsupported_reason
from experiments.inference.translator import make_translator
from experiments.learning.model import make_task_model
from experiments.runs.restore import KeptCheckpoints

pytestmark = browser.needs_node

LONGEST = 23
SENTENCES = 60
TWO_LAYERS = {"num_layers": 2, "num_decoder_layers": 2, "residual": True, "layer_norm": True}
MODELS = {
  "additive": {},
  "dot_product": {"attend_order": "after", "input_feeding": True},
  "scaled_dot_product": {**TWO_LAYERS, "tied_embeddings": True, "qk_features": 11},
  "bilinear": {"attend_order": "after", "num_decoder_layers": 2},
  "cosine": {"input_feeding": True, "layer_norm": True, "num_layers": 2},
  "none": {"tied_embeddings": True, "attend_order": "after", "input_feeding": True},
}

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


def make(name, **options):
  """Returns the config of a model, and its translator, of random parameters."""
  config = base.Config()
  config.model = base.Model(attention=name, embed_dim=13, features=17, **options)
  config.evaluation.max_decode_length = LONGEST
  task = make_task(config)
  model = make_task_model(config, task)
  arguments = jnp.ones((1, 3), jnp.int32), jnp.array([3]), jnp.ones((1, 2), jnp.int32)
  params = model_reference.random_parameters(model, *arguments)["params"]
  return config, make_translator(config, task, model, params)


def run_of(config, translator):
  assert unsupported_reason(config, translator) == ""
  return live_model(config, translator, KeptCheckpoints({7: translator.params}, 7), {})


def texts_of(translator):
  splits = "test", "length"
  examples = [item for split in splits for item in translator.task.examples(split, SENTENCES // len(splits))]
  return [item.source_text for item in examples]


def assert_same(output, translation):
  assert tuple(output["tokens"]) == translation.tokens
  assert output["text"] == translation.text
  assert output["isTruncated"] == translation.is_truncated
  np.testing.assert_allclose(output["score"], translation.score, atol=1e-4)
  if translation.attention is None:
    assert "weights" not in output or output["weights"] is None
  else:
    np.testing.assert_allclose(output["weights"], translation.attention, atol=1e-5)


def translate(run, options):
  return browser.in_node(RUN, {"run": run, "options": options})["translations"]


@pytest.mark.parametrize(
  ("name", "beam_size"),
  fixtures.always(
    ("additive", 3), ("none", 1), of=[(name, size) for name in ATTENTION_TYPES for size in (1, 3)]
  ),
)
def test_translations_are_those_of_jax(name, beam_size):
  config, translator = make(name, **MODELS[name])
  translator = translator.with_decode_options(beam_size=3)
  run = run_of(config, translator)
  texts = texts_of(translator)
  translations = translator.with_decode_options(beam_size=beam_size).translate(texts)
  # Translations depend on the sentence.
  assert len({round(item.score, 4) for item in translations}) > SENTENCES / 2
  # The default is the beam size of the run.
  options = {} if beam_size == 3 else {"beamSize": beam_size}
  results = translate(run, [{"text": text, **options} for text in texts])
  assert len(results) == SENTENCES
  for result, translation in zip(results, translations, strict=True):
    assert_same(result, translation)


TEXT = "the red cat sees the dog"
OPTIONS = {
  "plain": {"text": TEXT},
  "changed": {"text": TEXT, "hidden": [1, 4], "overrides": {"2": "uniform", "3": 5, "4": 1}},
  "hidden": {"text": "the cat", "hidden": [0, 1, 2]},
  "unknown": {"text": "zebra the ZEBRA gnu"},
  "empty": {"text": ""},
  "blank": {"text": " \t\u200b"},
  "emoji": {"text": "🦓 👩‍🚀"},
  "long": {"text": "the " * 450},
}


@pytest.fixture(scope="module")
def cosine():
  """Returns a translator, its arrays in the page, and the translations of `OPTIONS` and of forced tokens."""
  config, translator = make("cosine", **MODELS["cosine"])
  example = translator.task.examples("test", 1)[0]
  forced = {str(t): token for t, token in enumerate([*example.target, "</s>"])}
  options = {**OPTIONS, "forced": {"text": example.source_text, "forced": forced}}
  result = browser.in_node(RUN, {"run": run_of(config, translator), "options": [*options.values()]})
  return translator, result["arrays"], dict(zip(options, result["translations"], strict=True))


def test_parameters_are_exact(cosine):
  translator, arrays, _ = cosine
  leaves = jax.tree_util.tree_leaves_with_path(translator.params)
  assert len(arrays) == len(leaves)
  for path, leaf in leaves:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    np.testing.assert_array_equal(np.array(arrays[name], np.float32), np.ravel(leaf))


def test_forced_tokens_are_teacher_forcing(cosine):
  translator, _, translations = cosine
  example = translator.task.examples("test", 1)[0]
  (scored,) = translator.score([(example.source_text, example.target_text)])
  assert tuple(translations["forced"]["tokens"]) == example.target
  np.testing.assert_allclose(translations["forced"]["weights"], scored.attention, atol=1e-5)


def test_weights_can_be_changed(cosine):
  _, _, translations = cosine
  plain, changed = (np.array(translations[name]["weights"]) for name in ("plain", "changed"))
  assert changed.shape[1] == 7
  assert (np.delete(changed, 4, axis=0)[:, [1, 4]] == 0).all()
  np.testing.assert_allclose(changed.sum(axis=1), 1, atol=1e-6)
  kept = [0, 2, 3, 5, 6]
  np.testing.assert_allclose(changed[0, kept], plain[0, kept] / plain[0, kept].sum(), atol=1e-5)
  np.testing.assert_allclose(changed[2, kept], 1 / len(kept), atol=1e-6)
  np.testing.assert_array_equal(changed[3], np.eye(7)[5])
  np.testing.assert_array_equal(changed[4], np.eye(7)[1])  # weights of 1 ignore the mask
  # Where all is hidden, weights are zero.
  assert not np.any(translations["hidden"]["weights"])
  assert np.isfinite(translations["hidden"]["score"])


def test_odd_texts_are_translated(cosine):
  _, _, translations = cosine
  assert translations["unknown"]["unknownTokens"] == ["zebra", "gnu"]
  assert translations["unknown"]["columns"] == ["zebra", "the", "zebra", "gnu", "</s>"]
  assert translations["empty"] is translations["blank"] is None
  assert "🦓" in translations["emoji"]["unknownTokens"]
  assert len(translations["long"]["columns"]) == 401 and translations["long"]["numDropped"] == 50


def test_unsupported_models_are_explained():
  config, translator = make("additive")
  fields = {
    "encoder": "transformer",
    "decoder": "transformer",
    "attention": "monotonic",
    "normalizer": "sparsemax",
    "dtype": "bfloat16",
  }
  for name, value in fields.items():
    changed = copy.deepcopy(config)
    setattr(changed.model, name, value)
    assert unsupported_reason(changed, translator) == f"config.model.{name} is {value}"
  config.train.train_eos = False
  assert unsupported_reason(config, translator) == "config.train.train_eos is False"
