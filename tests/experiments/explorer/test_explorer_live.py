"""The page's own program, in Node, does what JAX does: the same words, scores and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import browser, model_reference

from configs import base
from experiments.explorer.live import ATTENTIONS, live_model, why_not
from experiments.tasks import make_task
from experiments.translation.loading import Kept
from experiments.translation.model import make_task_model
from experiments.translation.translator import make_translator

pytestmark = browser.needs_node

LONGEST = 23
SENTENCES = 200
TWO_LAYERS = {"num_layers": 2, "num_decoder_layers": 2, "residual": True, "use_norm": True}
MODELS = {
  "additive": {},
  "dot_product": {"looks": "after", "input_feeding": True},
  "scaled_dot_product": {**TWO_LAYERS, "tied_embeddings": True, "attention_width": 11},
  "bilinear": {"looks": "after", "num_decoder_layers": 2},
  "cosine": {"input_feeding": True, "use_norm": True, "num_layers": 2},
  "none": {"tied_embeddings": True, "looks": "after", "input_feeding": True},
}

RUN = """
const { unpackArrays } = await load("decode_arrays");
const { translate } = await load("translation");
const { DEFAULTS } = await load("url_state");
const arrays = await unpackArrays(given.run.checkpoints[0].arrays, given.run.layout);
return given.states.map((state) => {
  const found = translate(given.run, arrays, { ...DEFAULTS, ...state });
  return found && {
    words: found.words, score: found.score, text: found.text, isCut: found.isCut, unknown: found.unknown,
    columns: found.columns, weights: found.weights && found.weights.map((row) => [...row]),
    leftOut: found.leftOut, notTaken: found.notTaken,
  };
});
"""


def make(name, **options):
  """Returns the config of a model, and its translator, of random parameters."""
  config = base.Config()
  config.model = base.Model(attention=name, embedding_width=13, width=17, **options)
  config.evaluation.max_target_length = LONGEST
  task = make_task(config)
  model = make_task_model(config, task)
  arguments = jnp.ones((1, 3), jnp.int32), jnp.array([3]), jnp.ones((1, 2), jnp.int32)
  params = model_reference.random_parameters(model, *arguments)["params"]
  return config, make_translator(config, task, model, params)


def run_of(config, translator):
  assert why_not(config, translator) == ""
  return live_model(config, translator, Kept({7: translator.params}, 7), {})


def texts_of(translator):
  splits = "test", "length"
  examples = [each for split in splits for each in translator.task.examples(split, SENTENCES // len(splits))]
  return [each.source_text for each in examples]


def assert_same(found, translation):
  assert tuple(found["words"]) == translation.tokens
  assert found["text"] == translation.text
  assert found["isCut"] == translation.is_cut
  np.testing.assert_allclose(found["score"], translation.score, atol=1e-3)
  if translation.attention is None:
    assert found["weights"] is None
  else:
    np.testing.assert_allclose(found["weights"], translation.attention, atol=1e-4)


def test_every_attention_that_the_page_knows_is_tested():
  assert {*MODELS} == {*ATTENTIONS}


EVERY_TIME = ("additive", 3), ("none", 1)
OTHERS = [(name, beams) for name in MODELS for beams in (1, 3) if (name, beams) not in EVERY_TIME]


@pytest.mark.parametrize(
  ("name", "beam_size"),
  [*EVERY_TIME, *(pytest.param(*other, marks=pytest.mark.exhaustive) for other in OTHERS)],
)
def test_translations_are_those_of_jax(name, beam_size):
  config, translator = make(name, **MODELS[name])
  translator = translator.with_search(beam_size=beam_size)
  texts = texts_of(translator)
  states = [{"text": text, "beam": beam_size} for text in texts]
  found = browser.in_node(RUN, {"run": run_of(config, translator), "states": states})
  translations = translator.translate(texts)
  assert len({round(each.score, 4) for each in translations}) > SENTENCES / 2  # it reads the sentence
  assert len(found) == SENTENCES
  for one, other in zip(found, translations, strict=True):
    assert_same(one, other)


def test_a_run_translates_by_its_own_beams_unless_a_person_wants_others():
  config, translator = make("additive")
  translator = translator.with_search(beam_size=3)
  texts = texts_of(translator)[:20]
  found = browser.in_node(
    RUN, {"run": run_of(config, translator), "states": [{"text": text} for text in texts]}
  )
  for one, other in zip(found, translator.translate(texts), strict=True):
    assert_same(one, other)


def test_a_translation_that_a_person_has_chosen_has_the_weights_of_teacher_forcing():
  config, translator = make("additive")
  example = translator.task.examples("test", 1)[0]
  words = {str(t): word for t, word in enumerate([*example.target, "</s>"])}
  (found,) = browser.in_node(
    RUN, {"run": run_of(config, translator), "states": [{"text": example.source_text, "words": words}]}
  )
  (scored,) = translator.score([(example.source_text, example.target_text)])
  assert tuple(found["words"]) == example.target
  np.testing.assert_allclose(found["weights"], scored.attention, atol=1e-4)


def test_hidden_words_and_changed_rows_have_the_weights_that_a_person_wants():
  config, translator = make("cosine")
  state = {"text": "the red cat sees the dog", "masked": [1, 4], "rows": {"2": "flat", "3": 5, "4": 1}}
  plain, found = browser.in_node(
    RUN, {"run": run_of(config, translator), "states": [{"text": state["text"]}, state]}
  )
  plain, found = np.array(plain["weights"]), np.array(found["weights"])
  assert found.shape[1] == 7
  assert (np.delete(found, 4, axis=0)[:, [1, 4]] == 0).all()
  np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
  kept = [0, 2, 3, 5, 6]
  np.testing.assert_allclose(found[0, kept], plain[0, kept] / plain[0, kept].sum(), atol=1e-5)
  np.testing.assert_allclose(found[2, kept], 1 / len(kept), atol=1e-6)
  np.testing.assert_array_equal(found[3], np.eye(7)[5])
  np.testing.assert_array_equal(found[4], np.eye(7)[1])  # what a person wants goes before what is hidden


def test_where_all_is_hidden_weights_are_zero():
  config, translator = make("additive")
  (found,) = browser.in_node(
    RUN, {"run": run_of(config, translator), "states": [{"text": "the cat", "masked": [0, 1, 2]}]}
  )
  assert not np.any(found["weights"])
  assert np.isfinite(found["score"])


def test_words_are_drawn_by_their_probabilities_and_a_seed_draws_the_same():
  config, translator = make("additive")
  text = "the red cat sees the dog"
  states = [{"text": text, "temperature": 2, "seed": seed} for seed in [*range(40), 7]]
  found = browser.in_node(RUN, {"run": run_of(config, translator), "states": states})
  assert found[7]["words"] == found[40]["words"]
  assert len({tuple(each["words"]) for each in found}) > 30


def test_unknown_words_are_said_and_nothing_is_no_translation():
  config, translator = make("additive")
  texts = ["zebra the ZEBRA gnu", "", " \t", "🦓 👩‍🚀", "the " * 450]
  states = [{"text": text} for text in texts]
  found = browser.in_node(RUN, {"run": run_of(config, translator), "states": states})
  assert found[0]["unknown"] == ["zebra", "gnu"]
  assert found[0]["columns"] == ["zebra (unknown)", "the", "zebra (unknown)", "gnu (unknown)", "</s>"]
  assert found[1] is found[2] is None
  assert "🦓" in found[3]["unknown"]
  assert len(found[4]["columns"]) == 401 and found[4]["leftOut"] == 50


@pytest.mark.parametrize(
  "changed, reason",
  [
    ({"encoder": "transformer"}, "config.model.encoder is transformer"),
    ({"decoder": "transformer"}, "config.model.decoder is transformer"),
    ({"attention": "monotonic"}, "config.model.attention is monotonic"),
    ({"normalizer": "sparsemax"}, "config.model.normalizer is sparsemax"),
    ({"dtype": "bfloat16"}, "config.model.dtype is bfloat16"),
  ],
)
def test_what_the_page_cannot_run_is_told(changed, reason):
  config, translator = make("additive")
  for name, value in changed.items():
    setattr(config.model, name, value)
  assert why_not(config, translator) == reason


def test_what_has_not_learnt_the_end_is_not_run():
  config, translator = make("additive")
  config.train.learns_end = False
  assert why_not(config, translator) == "it has not learnt where sentences end"


def test_parameters_stay_what_they_were_to_the_bit():
  config, translator = make("scaled_dot_product", **MODELS["scaled_dot_product"])
  program = """
const { unpackArrays } = await load("decode_arrays");
const arrays = await unpackArrays(given.checkpoints[0].arrays, given.layout);
const matrices = Object.entries(arrays.matrices).map(([name, { data }]) => [name, data]);
return Object.fromEntries([...Object.entries(arrays.vectors), ...matrices].map(([name, data]) => [name, [...data]]));
"""
  found = browser.in_node(program, run_of(config, translator))
  leaves = jax.tree_util.tree_leaves_with_path(translator.params)
  assert len(found) == len(leaves)
  for path, leaf in leaves:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    np.testing.assert_array_equal(np.array(found[name], np.float32), np.ravel(leaf))
