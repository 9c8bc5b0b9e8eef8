"""Decoding with any step function: greedy search, beam search and sampling."""

from attention.decoding.beam import beam_search
from attention.decoding.hypotheses import SearchResult, Step
from attention.decoding.sampling import greedy, mask_top_k, mask_top_p, sample

__all__ = ["SearchResult", "Step", "beam_search", "greedy", "mask_top_k", "mask_top_p", "sample"]
