"""Unfinished studies, the script of studies, and eflomal."""

import pytest
from helpers import scripts

from experiments.data.toy import sentence_sampler
from experiments.studies import alignment, analysis
from tests.experiments.studies.test_studies import FOLDER, each_study, runs_of

pytestmark = pytest.mark.nightly


@each_study
def test_unfinished_studies_have_pages(name, tmp_path):
  stored = analysis.read_rows(FOLDER / f"{name}.csv")
  for rows in (stored[::3], []):
    paths = analysis.write_page(tmp_path, name, runs_of(name)[0], rows)
    assert "runs are finished." in paths[-1].read_text("utf-8")


def test_the_script_writes_stored_metrics(tmp_path):
  command = "write_findings", "--study=scan_seeds", f"--output={tmp_path}"
  assert "scan_seeds.csv: no metrics are stored; pass --workdir" in scripts.error_of(*command)
  (tmp_path / "scan_seeds.csv").write_bytes((FOLDER / "scan_seeds.csv").read_bytes())
  scripts.succeed(*command)
  assert (tmp_path / "scan_seeds.md").read_bytes() == (FOLDER / "scan_seeds.md").read_bytes()
  line = scripts.error_of(*command, f"--workdir={tmp_path}")
  assert "--workdir must contain runs of this study, such as " in line


def test_eflomal_is_scored_on_test_sentences(tmp_path, monkeypatch):
  # A fake aligner. Forward it links source word 0 to target word 1; in reverse it also links word 1 to word
  # 1.
  program = tmp_path / "eflomal-align"
  program.write_text(
    """#!/bin/sh
set -e
[ $(wc -l < "$2") -gt 1000 ] && sed 's/.*/0-1 /' "$2" > "$6" && sed 's/.*/1-1 0-1/' "$4" > "$8"
""",
    "utf-8",
  )
  program.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
  pairs = [sentence_sampler.pair(seed=0, split="test", index=i) for i in range(1000)]
  total = sum(len(pair.alignment) for pair in pairs)
  right = [sum(link in pair.alignment for pair in pairs) for link in ((1, 0), (1, 1))]
  rows = alignment.extra_rows()
  next(rows)  # the lower bound
  rates = [next(rows)["test/alignment_error_rate"] for _ in range(3)]  # forward, reverse, both
  one, two = 1 - 2 * right[0] / (total + 1000), 1 - 2 * sum(right) / (total + 2000)
  assert rates == [pytest.approx(one), pytest.approx(two), pytest.approx(one)]
