r"""Multi30k, German to English: a Transformer encoder and decoder, on subwords.

    python -m experiments.train --config=configs/multi30k_transformer.py --workdir=runs/multi30k_transformer \
        --config.data.train_file=train.de-en.tsv.gz --config.data.validation_file=val.de-en.tsv.gz

Data and number of steps are those of configs/multi30k.py. Validation BLEU 41.1 greedy, 41.7 with 5 beams
(docs/findings/multi30k.md); with sinusoidal positions and half the learning rate, 38.3 with 5 beams. Training
takes 24 minutes on 2 CPU cores (JAX 0.10.1, seed 0).
"""

from configs import base, multi30k


def get_config() -> base.Config:
  config = multi30k.get_config()
  config.model = base.Model(
    encoder="transformer",
    decoder="transformer",
    features=256,
    num_heads=4,
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
