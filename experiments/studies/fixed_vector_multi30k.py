r"""How much does attention help on real text?

**It doubles BLEU on long sentences**: for sentences of 20 to 40 words, the model with attention reaches 27.8
BLEU, and the model with a fixed vector 12.3. Short sentences lose less: 39.7 and 23.9 BLEU at up to 8 words.

**Setup.** Multi30k, German to English, with `configs/multi30k.py` with and without attention, 1,000 steps,
four seeds, greedy decoding. A run takes 5 to 9 minutes on two shared CPU cores. The data files are those of
the study `multi30k`, in the working directory.

**Limitations.** Training takes minutes, not days, and the models are small.

**Related results.** In Bahdanau et al. 2015 (arXiv:1409.0473, figure 2) long sentences also lose most. Short
sentences lose little there.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/fixed_vector_multi30k.py \
        --workdir=runs/fixed_vector_multi30k
    python -m experiments.write_findings --study=fixed_vector_multi30k --workdir=runs/fixed_vector_multi30k
"""

from typing import Any

from configs import base, multi30k
from experiments.data.tokenizers import WordTokenizer
from experiments.evaluation.metrics import corpus_bleu
from experiments.inference.translator import Translator
from experiments.studies import analysis, fixed_vector
from experiments.studies.analysis import Runs, StudyReport

MIN_SEEDS = 4
LENGTH_RANGES = (1, 8), (9, 10), (11, 12), (13, 15), (16, 19), (20, 40)


def get_config() -> base.Config:
  config = analysis.with_num_steps(multi30k.get_config(), 1000)
  config.data.train_file, config.data.validation_file = "train.de-en.tsv.gz", "val.de-en.tsv.gz"
  config.evaluation.beam_size = 1
  return config


def get_sweep() -> dict[str, list[Any]]:
  return {"model.attention": [*fixed_vector.MODELS], "seed": [0, 1, 2, 3]}


def measure(translator: Translator) -> dict[str, float]:
  """Returns BLEU for each range of source lengths of the validation split."""
  examples = translator.task.examples("validation", 0)
  lengths = [len(WordTokenizer().tokenize(example.source_text)) for example in examples]
  return fixed_vector.by_length(translator, examples, lengths, LENGTH_RANGES, {"bleu": corpus_bleu})


def write(runs: Runs) -> StudyReport:
  return fixed_vector.write(runs, LENGTH_RANGES, {"BLEU": "bleu"}, num_seeds="four")
