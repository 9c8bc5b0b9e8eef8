"""Search for likely sequences under any step function: greedy, by beams, by chance."""

from attention.search.beam import beam
from attention.search.hypotheses import Hypotheses, Step
from attention.search.one_by_one import greedy, keep_top_k, keep_top_p, sample

__all__ = ["Hypotheses", "Step", "beam", "greedy", "keep_top_k", "keep_top_p", "sample"]
