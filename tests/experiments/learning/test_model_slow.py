"""All encoders with all attentions."""

import pytest

from attention.models.decoder_attention import ATTENTION_TYPES
from tests.experiments.learning.test_model import make, shapes_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
@pytest.mark.parametrize("attention", ATTENTION_TYPES)
def test_encoders_and_attentions_combine(attention, encoder):
  decoder = shapes_of(make(encoder=encoder, attention=attention))["decoder"]
  assert ("attention_layer" in decoder) == (attention != "none")
  assert decoder["initial"]["kernel"][0] == (24 if encoder == "recurrent" else 12)
