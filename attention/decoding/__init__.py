"""Decoding with any step function: greedy search, beam search and sampling."""

from attention.decoding.beam import beam
from attention.decoding.hypotheses import SearchResult, Step
from attention.decoding.sampling import greedy, mask_top_k, mask_top_p, sample

__all__ = ["SearchResult", "Step", "beam", "greedy", "mask_top_k", "mask_top_p", "sample"]
