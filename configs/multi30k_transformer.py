r"""Multi30k, German to English: a transformer encoder and decoder, on subwords.

    python -m experiments.train --config=configs/multi30k_transformer.py --workdir=runs/multi30k_transformer \
        --config.data.train_file=train.de-en.tsv.gz --config.data.validation_file=val.de-en.tsv.gz

The text of configs/multi30k.py, as many steps, with another model. On 2 CPU cores, seed 0: 24 minutes of
training; validation BLEU 41.1 greedy, 41.7 with 5 beams (docs/findings/multi30k.md). With sinusoidal
positions and half the learning rate it is 38.3 with 5 beams.
"""

from configs import base, multi30k


def get_config() -> base.Config:
  config = multi30k.get_config()
  config.model = base.Model(
    encoder="transformer",
    decoder="transformer",
    features=256,
    mlp_dim=512,
    num_layers=2,
    num_decoder_layers=2,
    position_encoding="rotary",
    tied_embeddings=True,
    dropout_rate=0.2,
    word_dropout_rate=0.05,
  )
  config.train.learning_rate = 2e-3
  config.train.warmup_fraction = 0.1
  return config
