"""BERT with its head for masked tokens.

    python -m examples.bert --model=folder --tokens=101,7592,103,102 --weights=weights.npz

prints the most likely token at each position, and writes the attention weights; see `language_model`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app

from attention import convert, masks
from examples.files import TOKENS, WEIGHTS, read_model


def encode(model, tokens, lengths, types=0):
  """Returns vectors [B T D] and attention weights [L B N T T], for tokens [B T] and lengths [B]."""
  params, weights = model.params, []
  vectors = params["embedding"][tokens] + params["positions"][: tokens.shape[1]]
  vectors = model.norm.apply(params["norm"], vectors + params["types"][types])
  mask = masks.lengths(source=lengths[:, None])
  for variables in params["layers"]:
    vectors, layer_weights = model.layer.apply(variables, vectors, mask=mask, return_weights=True)
    weights.append(layer_weights)
  return vectors, jnp.stack(weights)


def masked_token_logits(model, vectors):
  """Returns logits [B T V] from the outputs of the layers [B T D]."""
  heads, prefix = model.params["heads"], "cls.predictions.transform"
  hidden = vectors @ heads[f"{prefix}.dense.weight"].T + heads[f"{prefix}.dense.bias"]
  norm = {"scale": heads[f"{prefix}.LayerNorm.weight"], "bias": heads[f"{prefix}.LayerNorm.bias"]}
  hidden = model.norm.apply({"params": norm}, jax.nn.gelu(hidden, approximate=False))
  return hidden @ model.params["embedding"].T + heads["cls.predictions.bias"]


def main(_):
  model = convert.bert(*read_model())
  tokens = jnp.array([[int(token) for token in TOKENS.value]])
  vectors, weights = encode(model, tokens, jnp.array([tokens.shape[1]]))
  print(*jnp.argmax(masked_token_logits(model, vectors)[0], axis=-1).tolist(), sep=",")
  if WEIGHTS.value:
    np.savez(WEIGHTS.value, weights=weights[:, 0], tokens=TOKENS.value)


if __name__ == "__main__":
  app.run(main)
