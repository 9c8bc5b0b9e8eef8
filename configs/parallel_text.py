r"""Translation trained on parallel text: tab-separated UTF-8, source first, plain or .gz.

    python -m experiments.train --config=configs/parallel_text.py --workdir=runs/parallel_text \
        --config.data.train_file=train.tsv --config.data.validation_file=validation.tsv

The size of the model and the number of steps are chosen for about 30,000 short sentences, and less than ten
minutes on 2 CPU cores. configs/multi30k.py is larger, with scores.
"""

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  config.data.task = "parallel_text"
  config.data.tokenization = "subword"
  config.data.max_train_length = 50
  config.data.num_buckets = 4
  config.model.encoder = "recurrent"
  config.model.attention = "additive"
  config.model.embed_dim = 256
  config.model.features = 256
  config.model.dropout_rate = 0.3
  config.train.num_train_steps = 650
  config.train.batch_size = 128  # sentence pairs, on average
  config.train.learning_rate = 2e-3
  config.train.eval_every_steps = 325
  config.evaluation.num_eval_examples = 0  # all
  return config
