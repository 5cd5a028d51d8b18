"""Hugging Face `transformers`: HYLA by name in its models, and the latent codes of any pretrained one.

    register()                      attn_implementation="hyla", and the other attentions of Table A1; our language model
    language_model.export_run       a language model of ours as a model of `transformers`, and back
    codes(model, inputs)            codes and residual stream of chosen query-key pairs

Needs the extra `huggingface`. See docs/hugging_face.md.
"""

from __future__ import annotations

from recombine.integrations.huggingface.attention import register_attentions
from recombine.integrations.huggingface.codes import Codes, codes


def register() -> None:
    """Make our attentions and our language model known to `transformers`. Calling it again changes nothing."""
    register_attentions()  # first, because it says which package is missing
    from recombine.integrations.huggingface.language_model import register_language_model

    register_language_model()


__all__ = ["Codes", "codes", "register"]
