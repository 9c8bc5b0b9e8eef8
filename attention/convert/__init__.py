"""Parameters from PyTorch and from models of Hugging Face, as parameters of the layers of this package.

`llama`, `gpt2`, `bert` and `t5` convert whole models, with the layer that fits the config: the content of
config.json, or `model.config.to_dict()`. The other functions convert layers of PyTorch.

A state is a mapping from names to arrays, such as `module.state_dict()`, or a file as it is read by
`safetensors.flax.load_file`. PyTorch is not imported. Each parameter is used or raises a ValueError, except
in `gpt_oss_attention`. In Qwen 2 and StableLM, the output projection has no bias, and gets a bias of zero.
Arrays keep their dtype, but float64 becomes float32 unless `jax_enable_x64` is set.

For layers of PyTorch, names that begin with `prefix` are read, and others are ignored. A parameter that the
options of the layer leave out, such as a bias with `use_bias=False`, raises a ValueError in the layer.
`torch_gru` reads one layer of several.
"""

from attention.convert.published import Pretrained as Pretrained
from attention.convert.published import bert as bert
from attention.convert.published import gpt2 as gpt2
from attention.convert.published import gpt_oss_attention as gpt_oss_attention
from attention.convert.published import llama as llama
from attention.convert.published import t5 as t5
from attention.convert.torch_layers import torch_encoder_layer as torch_encoder_layer
from attention.convert.torch_layers import torch_gru as torch_gru
from attention.convert.torch_layers import torch_multi_head_attention as torch_multi_head_attention
