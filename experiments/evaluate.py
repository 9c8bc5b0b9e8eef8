"""Scores a trained translator on every split of its task.

python -m experiments.evaluate --workdir=runs/toy_translation
"""

from absl import flags

from experiments.translation import commands, report
from experiments.translation.loop import load

_WORKDIR = commands.define_workdir(None)
_SENTENCES = flags.DEFINE_integer(
  "sentences",
  None,
  "another number of sentences of each split than the config's, 0 for all; results.json stays as it is",
  lower_bound=0,
)


def main() -> None:
  folder = commands.workdir_path(_WORKDIR)
  config, translator = load(folder)
  count = _SENTENCES.value
  results = report.evaluate_splits(translator, config.evaluation.sentences if count is None else count)
  if count is None:
    report.write_results(folder, results)
  print(report.table(results))


if __name__ == "__main__":
  commands.run(main)
