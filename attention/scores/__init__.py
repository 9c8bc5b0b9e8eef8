"""Score functions, and the `Score` classes that the engines take."""

from attention.scores.additive import Additive as Additive
from attention.scores.additive import additive_scores as additive_scores
from attention.scores.base import Score as Score
from attention.scores.bilinear import Bilinear as Bilinear
from attention.scores.bilinear import bilinear_scores as bilinear_scores
from attention.scores.cosine import Cosine as Cosine
from attention.scores.cosine import cosine_scores as cosine_scores
from attention.scores.dot_product import ScaledDotProduct as ScaledDotProduct
from attention.scores.dot_product import dot_product_scores as dot_product_scores
from attention.scores.location_aware import LocationAware as LocationAware
from attention.scores.location_aware import location_features as location_features
from attention.scores.soft_cap import SoftCap as SoftCap
