"""Parameters from PyTorch and from models of Hugging Face, as parameters of the layers of this package.

Each function takes a state: a mapping from names to arrays, such as `module.state_dict()` or
`safetensors.numpy.load_file(path)`. PyTorch is not imported. Names that begin with `prefix` are read, such as
"encoder.layer.0."; others are ignored. Each parameter with the prefix is used or raises a ValueError: here,
or in a layer whose options leave it out, such as a bias with `use_bias=False`. If only some projections of a
layer have biases, the others get biases of zero. `t5_attention` leaves the table of biases to
`t5_bias_table`, and `torch_gru` reads one layer of several. Arrays keep their dtype, but float64 becomes
float32 unless `jax_enable_x64` is set.
"""

from attention.convert.layers import bert_layer as bert_layer
from attention.convert.layers import gpt2_layer as gpt2_layer
from attention.convert.layers import llama_layer as llama_layer
from attention.convert.layers import t5_attention as t5_attention
from attention.convert.layers import t5_bias_table as t5_bias_table
from attention.convert.layers import torch_encoder_layer as torch_encoder_layer
from attention.convert.layers import torch_gru as torch_gru
from attention.convert.layers import torch_multi_head_attention as torch_multi_head_attention
