"""How well a key fits a query: functions, and the scores that engines take."""

from attention.scores.additive import Additive, additive_scores
from attention.scores.bilinear import Bilinear, bilinear_scores
from attention.scores.cosine import Cosine, cosine_scores
from attention.scores.dot_product import ScaledDotProduct, dot_product_scores
from attention.scores.location_aware import LocationAware, location_features
from attention.scores.score import Score
from attention.scores.soft_capped import SoftCapped

__all__ = [  # noqa: RUF022 (in reading order)
  "dot_product_scores",
  "additive_scores",
  "bilinear_scores",
  "cosine_scores",
  "Score",
  "ScaledDotProduct",
  "Additive",
  "Bilinear",
  "Cosine",
  "SoftCapped",
  "location_features",
  "LocationAware",
]
