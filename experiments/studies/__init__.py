"""Questions about attention, each a file: what is trained for it, and what is written of what that finds.

A file here is a sweep's, with `get_config` and `get_sweep`. Its docstring is the text of its page: the
question in a line, the commands, what was done, the answer. It also has

    def write(runs: compare.Runs) -> findings.Finding:
      # The page's tables and figures. Of runs that are not finished there are no numbers yet.
      groups, metrics = {score: runs.of(attention=score) for score in SCORES}, {"BLEU": "test/bleu"}
      figure = figures.spread(compare.panels(groups, metrics))
      return Finding(findings.table(groups, metrics), {"scores": figure})

and, where results.json does not say enough, `measure(translator)`, which returns more numbers of a finished
run by `group/name`. With fewer than five seeds it says so, `FEWEST_SEEDS = 3`, and with fewer than four there
can be no star (see `findings.p_value`). Numbers of one config and seed differ a little between pages if they
were run on different kinds of CPU, which round differently.
"""
