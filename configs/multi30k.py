r"""Multi30k, German to English: a GRU encoder, and a GRU decoder with additive attention, on subwords.

    python -m experiments.train --config=configs/multi30k.py --workdir=runs/multi30k \
        --config.data.train_file=train.de-en.tsv.gz --config.data.validation_file=val.de-en.tsv.gz

The data are the 29,000 pairs of Elliott et al. 2016 (arXiv:1605.00459), one per line, German TAB English.
Validation BLEU (sacrebleu, lowercased) 42.2 greedy, 44.0 with 5 beams (JAX 0.10.1, seed 0). A second run,
from other initial parameters, has 42.8 and 43.7. Training takes 18 minutes on 2 CPU cores.
"""

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  config.data.task = "parallel_text"
  config.data.tokenization = "subword"
  config.data.vocabulary_size = 4000
  config.data.max_train_length = 50
  config.data.num_buckets = 5
  config.model.embed_dim = 256
  config.model.features = 256
  config.model.attention = "additive"
  config.model.attend_order = "after"  # Luong's decoder
  config.model.input_feeding = True
  config.model.layer_norm = True
  config.model.tied_embeddings = True
  config.model.dropout_rate = 0.35
  config.model.word_dropout_rate = 0.05
  config.train.num_train_steps = 4000
  config.train.batch_size = 128  # sentence pairs, on average
  config.train.learning_rate = 2e-3
  config.train.warmup_fraction = 0.05
  config.train.label_smoothing = 0.1
  config.train.ema_decay = 0.998
  config.train.best_metric = "bleu"
  config.train.eval_every_steps = 500
  config.evaluation.num_eval_examples = 0  # all
  config.evaluation.num_validation_examples = 0  # all
  config.evaluation.beam_size = 5
  config.evaluation.max_decode_length = 80
  return config
