"""Search for likely sequences under any step function: greedy, by beams, by chance."""

from attention.decoding.beam import beam
from attention.decoding.hypotheses import Hypotheses, Step
from attention.decoding.sampling import greedy, keep_top_k, keep_top_p, sample

__all__ = ["Hypotheses", "Step", "beam", "greedy", "keep_top_k", "keep_top_p", "sample"]
