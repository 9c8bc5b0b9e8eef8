"""Studies: one file per question about attention, and the page that answers it.

A study is a sweep file with `get_config` and `get_sweep`. Its docstring is the text of its page: the title,
the answer, "**Setup.**", "**Limitations.**", "**Related results.**" and "**Reproduce.**". It also has

    def write(runs: compare.Runs) -> StudyReport:
      # Returns the tables and figures of the page. Unfinished runs have no rows.
      groups, metrics = {score: runs.filter(attention=score) for score in SCORES}, {"BLEU": "test/bleu"}
      figure = figures.dot_plot(compare.metric_panels(groups, metrics))
      return StudyReport(analysis.table(groups, metrics), {"scores": figure})

A study may also have

* `measure(translator)`, which returns metrics that results.json does not have, by `group/name`;
* `extra_rows()`, which yields rows that are not from runs, such as those of another program;
* `MIN_SEEDS`, if it has fewer than five seeds. With fewer than four, no difference can be significant at
  p < 0.05 (see `analysis.p_value`).

Results of one config and seed differ slightly between pages if the runs used different CPU models, because
rounding differs.
"""
