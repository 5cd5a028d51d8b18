"""Hugging Face `transformers`: HYLA by name in its models, and the latent codes of any pretrained one.

    register()                      attn_implementation="hyla", and every other attention of Table A1
    add_deep_weights(model)         the extra matrices of "hyla_deep"
    codes(model, inputs)            codes and residual stream of chosen query-key pairs
    views(model, inputs)            the value matrices that the codes generate, which reproduce the model's own output

Needs the extra `huggingface`. See docs/hugging_face.md.
"""

from recombine.integrations.huggingface_attention import register
from recombine.integrations.huggingface_codes import Codes, codes
from recombine.integrations.huggingface_deep import add_deep_weights
from recombine.integrations.huggingface_view import LayerView, views

__all__ = ["Codes", "LayerView", "add_deep_weights", "codes", "register", "views"]
