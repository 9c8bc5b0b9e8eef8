"""Scores a trained translator on every split of its task.

python -m experiments.evaluate --workdir=runs/toy_translation --beam_size=5
"""

from absl import flags

from experiments.commands import flags as commands
from experiments.runs import provenance
from experiments.translation import report, search_flags
from experiments.translation.evaluate import own_metrics
from experiments.translation.loading import load
from experiments.translation.settings import read_config

_WORKDIR = commands.define_workdir(None)
_CHECKPOINT = search_flags.define_checkpoint()
_SEARCH = search_flags.define_search()
_SENTENCES = flags.DEFINE_integer(
  "sentences", None, "number of sentences of each split, 0 for all (default: the config's)", lower_bound=0
)


def main() -> None:
  folder = commands.workdir_path(_WORKDIR)
  search = search_flags.chosen_search(_SEARCH)
  config = read_config(folder)
  provenance.check_same_data(folder, provenance.digests([config.data.validation, config.data.test]))
  translator = load(folder, checkpoint=_CHECKPOINT.value, search=search)
  search_flags.check_search(_SEARCH, translator.search.beam_size)
  count = config.evaluation.sentences if _SENTENCES.value is None else _SENTENCES.value
  print(report.table(report.evaluate_splits(translator, count, own_metrics(config.evaluation))))


if __name__ == "__main__":
  commands.run(main)
