"""Questions about attention, each a file: what is trained for it, and what is written of what that finds.

A file here is a sweep's, with `get_config` and `get_choices`. Its docstring is the text of its page: the
question in a line, the commands, what was done, the answer. It also has

    def write(runs: findings.Runs) -> findings.Finding:
      # The page's tables and figures. Of runs that are not finished there are no numbers yet.
      found = {score: runs.of(attention=score).values("test/bleu") for score in SCORES}
      rows = [[score, mean(bleu)] for score, bleu in found.items()]
      return Finding(markdown(["score", "BLEU"], rows), {"scores": figures.spread({"BLEU": found})})

and, where results.json does not say enough, `measure(translator)`, which returns more numbers of a finished
run by `group/name`. With fewer than five seeds it says so, `FEWEST_SEEDS = 3`, and with fewer than four there
can be no star (see `findings.p_value`). Numbers of one config and seed differ a little between pages if they
were run on different kinds of CPU, which round differently.
"""
