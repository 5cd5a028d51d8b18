"""Latent codes of `transformers` models: chosen pairs, files, and the matrices that they generate."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import BertConfig, BertModel

from huggingface_models import HEADS, LAYERS, WIDTH, build_model, draw_tokens
from recombine.foundation.errors import InputError
from recombine.inside.collect import load_activations
from recombine.integrations.huggingface import register
from recombine.integrations.huggingface.codes import codes

register()
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1]])


def draw_inputs():
    return {"input_ids": draw_tokens(), "attention_mask": PADDED}


def build_bert():
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 29,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    return BertModel(BertConfig(**sizes, intermediate_size=24, max_position_embeddings=64)).eval()


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("llama", "sdpa"),
        ("mistral", "sdpa"),
        ("gpt2", "sdpa"),
        ("bert", "sdpa"),
        ("llama", "hyla"),
        ("mistral", "hyla"),
    ],
)
def test_codes_are_what_the_model_computes(kind, attention):
    model = build_bert() if kind == "bert" else build_model(kind, attention)
    found = codes(model, draw_inputs(), [(-1, -1), (4, 2)], batch_size=1)
    assert model.config._attn_implementation == attention
    if attention == "sdpa":
        model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(**draw_inputs(), output_attentions=True, output_hidden_states=True)
    for layer in range(LAYERS):
        for row, end in enumerate((5, 8)):
            expected = own.attentions[layer][row, :, [end, 4], [end, 2]].T
            np.testing.assert_allclose(found.arrays[f"codes.{layer}"][row], expected, atol=2e-5)
            residual = own.hidden_states[layer + 1][row, [end, 4]]
            np.testing.assert_allclose(found.arrays[f"residual.{layer}"][row], residual, atol=2e-5)
    np.testing.assert_array_equal(found.pairs, [[[5, 5], [4, 2]], [[8, 8], [4, 2]]])


def test_the_file_is_one_that_probe_reads(tmp_path):
    found = codes(build_model("gpt2"), draw_tokens(8), [(-1, -1), (-1, 0)])
    labels = np.arange(8) % 2
    found.write(tmp_path / "codes.npz", labels=labels, split=np.array(["fit"] * 4 + ["id"] * 2 + ["ood"] * 2))
    activations = load_activations(tmp_path / "codes.npz")
    assert activations.by_site["codes.1"].shape == (8, 2 * HEADS)
    assert activations.by_site["residual.0"].shape == (8, 2 * WIDTH)
    assert activations.labels.argmax(axis=1).tolist() == labels.tolist()


def test_wrong_questions(unchecked):
    model, tokens = build_model("llama"), draw_tokens()
    with pytest.raises(InputError, match=r"pair \(3, 7\) of row 0 is not a pair of its 6 tokens"):
        codes(model, draw_inputs(), [(3, 7)])
    with pytest.raises(InputError, match=r"pairs have shape \(2, 1, 3\): expected \(pairs, 2\) or \(2, pairs, 2\)"):
        codes(model, tokens, torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(InputError, match="the model is a Linear: expected a model of transformers"):
        codes(nn.Linear(2, 2), tokens)
    with pytest.raises(InputError, match="batch_size"):
        codes(model, tokens, batch_size=0)
