"""Scores a trained translator on every split of its task.

python -m experiments.evaluate --workdir=runs/toy_translation
"""

from absl import flags

from experiments.translation import commands, report
from experiments.translation.loop import load

_WORKDIR = commands.define_workdir(None)
_SENTENCES = flags.DEFINE_integer(
  "sentences", None, "sentences of each split; none for the config's, 0 for all there are", lower_bound=0
)


def main() -> None:
  folder = commands.workdir_path(_WORKDIR)
  config, translator = load(folder)
  count = config.evaluation.sentences if _SENTENCES.value is None else _SENTENCES.value
  results = report.evaluate_splits(translator, count)
  report.write_results(folder, results)
  print(report.table(results))


if __name__ == "__main__":
  commands.run(main)
