"""Trains a translator, scores it, and draws what it attends to.

    python -m experiments.train --config=configs/toy_translation.py --workdir=runs/toy_translation

The same command again goes on where the run stopped.
"""

from experiments.translation import commands, report
from experiments.translation.loop import train

_CONFIG = commands.define_config()
_WORKDIR = commands.define_workdir("runs/toy_translation")


def main() -> None:
  config, folder = _CONFIG.value, commands.workdir_path(_WORKDIR)
  translator = train(config, folder)
  results = report.evaluate_splits(translator, config.evaluation.sentences)
  report.write_results(folder, results)
  print(report.table(results))
  report.show_translations(translator)
  for path in report.draw_figures(folder, translator):
    print(f"wrote {path}")


if __name__ == "__main__":
  commands.run(main)
