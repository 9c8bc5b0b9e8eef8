"""BERT with its head for masked tokens.

    python -m examples.bert --model=folder --tokens=101,7592,103,102 --weights=weights.npz

prints the most likely token at each position, and writes the attention weights; see `language_model`.
"""

import jax.numpy as jnp

from attention import convert, masks
from examples.files import read_model, read_tokens, write_weights
from experiments.cli import flags as cli


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
  activation = model.layer.feed_forward_cls.keywords["activation"]
  hidden = model.norm.apply({"params": norm}, activation(hidden))
  decoder = heads.get("cls.predictions.decoder.weight", model.params["embedding"])
  return hidden @ decoder.T + heads["cls.predictions.bias"]


def main():
  model = convert.bert(*read_model())
  tokens = read_tokens(len(model.params["embedding"]))
  vectors, weights = encode(model, tokens, jnp.array([tokens.shape[1]]))
  print(*jnp.argmax(masked_token_logits(model, vectors)[0], axis=-1).tolist(), sep=",")
  write_weights(weights[:, 0], tokens=tokens[0])


if __name__ == "__main__":
  cli.run(main)
