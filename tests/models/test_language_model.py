"""The language model: causal, the same with and without a cache, and trainable through every verb."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recombine.attention import layer as layers
from recombine.attention.cache import build_cache
from recombine.attention.dispatch import use_kernel
from recombine.attention.layer import Attention, DropoutKeys
from recombine.cli.main import run as run_cli
from recombine.foundation.errors import InputError
from recombine.models.language_model import LanguageModel, LanguageModelConfig, choose_token, generate
from recombine.models.transformer import count_parameters
from recombine.tasks.language.task import Language
from recombine.training.config import default_run

FOLDER = str(Path(__file__).parents[1] / "text")
SIZES = {"num_layers": 2, "embedding_dim": 16, "kqv_dim": 16, "mlp_dim": 32, "num_heads": 4}
ATTENTIONS = ("softmax", "linear", "hyla")
VARIANTS = [
    *({"attention": attention} for attention in ATTENTIONS),
    *({"attention": attention, "position": "relative"} for attention in ATTENTIONS),
    {"attention": "hyla", "qk_norm": True, "biases": False, "initialisation": "xavier"},
    {"attention": "hyla", "output_scale": "sqrt_keys"},
    {"attention": "linear_rms_head_nonlinear_value", "feedforward": "swiglu"},
]


def build(**choices) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**{**SIZES, **choices}), num_tokens=50, context_length=32).eval()


@pytest.fixture(params=VARIANTS, ids=lambda choices: "-".join(map(str, choices.values())))
def model(request):
    return build(**request.param)


def test_no_token_sees_a_later_one(model):
    embedded = torch.randn(1, 8, 16, requires_grad=True)
    model.embedding.forward = lambda inputs: embedded
    model(torch.zeros(1, 8, dtype=torch.long))[0, 3].sum().backward()
    assert embedded.grad[0, :4].abs().sum(dim=-1).all()
    assert not embedded.grad[0, 4:].any()


def test_a_cache_changes_nothing_but_rounding(model):
    tokens = torch.randint(50, (2, 12))
    with torch.inference_mode(), use_kernel("reference"):
        expected = model(tokens)
        cache = model.start()
        parts = [model(part, cache=cache) for part in tokens.split([5, 1, 1, 4, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-4, atol=1e-4)


def test_generated_tokens_are_the_most_likely_ones(model):
    generated = list(generate(model, [1, 2, 3], num_tokens=20, temperature=0.0))
    assert generated == model(torch.tensor([[1, 2, 3, *generated]]))[0, 2:-1].argmax(dim=-1).tolist()
    drawn = [list(generate(model, [1, 2, 3], num_tokens=20, temperature=0.9, top_p=0.9, seed=3)) for _ in range(2)]
    assert drawn[0] == drawn[1]


HOOKS: dict[str, dict[str, Any]] = {
    "code_map": {"code_map": lambda codes: codes * torch.tensor([0.0, 2.0, 1.0, 1.0]).view(-1, 1, 1)},
    "codes": {"return_codes": True},
    "padding": {"mask": torch.arange(12) >= torch.tensor([[[[0]]], [[[3]]]])},
    "pairs": {"mask": torch.rand(12, 12, generator=torch.Generator().manual_seed(0)) > 0.3},
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", ["softmax", "linear", "linear_value", "hyla"])
def test_a_cache_applies_masks_and_code_maps(name, hook, monkeypatch):
    if name == "linear_value":  # the other attention that is a sum over keys
        monkeypatch.setitem(layers.ATTENTIONS, "linear", ("none", "nonlinear_value"))
        name = "linear"
    layer = Attention(16, num_heads=4, kqv_dim=16, attention=name, output_scale="keys")
    x, options = torch.randn(2, 12, 16), {"return_codes": False, **HOOKS[hook]}
    expected, expected_codes = layer(x, causal=True, **options)
    cache, outputs, codes = build_cache(*layers.ATTENTIONS[name], has_bias=False), [], []
    for start, end in [(0, 5), (5, 6), (6, 10), (10, 12)]:
        seen = {**options, "mask": options["mask"][..., :end]} if "mask" in options else options
        if hook == "pairs":
            seen["mask"] = seen["mask"][start:end]
        part, code = layer(x[:, start:end], causal=True, cache=cache, **seen)
        outputs.append(part)
        codes.append(code)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-4, atol=1e-5)
    if expected_codes is not None:
        torch.testing.assert_close(codes[-1], expected_codes[:, :, 10:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_cache_applies_code_maps_and_dropout_of_the_model(attention):
    model, tokens = build(attention=attention), torch.randint(50, (2, 6))
    code_maps = [HOOKS["code_map"]["code_map"], torch.zeros_like]
    expected = model(tokens, code_maps=code_maps)
    torch.testing.assert_close(model(tokens, cache=model.start(), code_maps=code_maps), expected)
    model.train()
    for block in model.blocks:
        block.attention.dropout.rate = 0.5
    keys = DropoutKeys(model)
    with keys.at(0, 0):
        expected = model(tokens)
    with keys.at(0, 0):
        torch.testing.assert_close(model(tokens, cache=model.start()), expected)


def test_a_sum_over_keys_refuses_what_needs_the_keys():
    model, tokens, code_maps = build(attention="linear"), torch.randint(50, (2, 6)), [torch.zeros_like] * 2
    cache, keys = model.start(), model.start(keep_keys=True)
    for memory in (cache, keys):
        model(tokens, cache=memory)
    with pytest.raises(InputError, match="the cache holds a sum over 6 tokens: expected one that keeps their keys"):
        model(tokens, cache=cache, code_maps=code_maps)
    whole = model(torch.cat([tokens, tokens], dim=1), code_maps=code_maps)
    assert not torch.equal(model(tokens, cache=keys, code_maps=code_maps), whole)


def test_the_paper_preset_has_the_paper_s_size():
    run: Any = default_run("language", "paper")
    with torch.device("meta"):
        model = LanguageModel(run.model, num_tokens=run.task.vocabulary_size, context_length=512)
    assert count_parameters(model) == 35_265_024
    assert run.training.steps * run.training.batch_size * run.task.context_length == 131_072_000_000


@pytest.mark.parametrize(
    ("logits", "draw", "expected"), [([0.0, 2.0, 1.0], 0.0, 1), ([0.0, 2.0, 1.0], 0.999, 2), ([0.0, 0.0, 9.0], 0.9, 2)]
)
def test_top_p_leaves_out_unlikely_tokens(logits, draw, expected):
    assert choose_token(torch.tensor(logits), draw, temperature=1.0, top_p=0.9) == expected


def test_sampling_follows_the_distribution():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    drawn = [choose_token(logits, (i + 0.5) / 1000, temperature=1.0, top_p=1.0) for i in range(1000)]
    assert [drawn.count(token) for token in range(3)] == [500, 300, 200]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature is -1\.0: expected 0 or a positive number"),
        ({"top_p": 0.0}, r"top_p is 0\.0: expected a number above 0"),
        ({"num_tokens": 0}, "num_tokens is 0: expected a whole number of at least 1"),
        ({"prompt": []}, "the prompt is empty"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_errors(options, message):
    with pytest.raises(InputError, match=message):
        generate(build(), **{"prompt": [1], "num_tokens": 1, **options})
    with pytest.raises(InputError, match=r"inputs are torch.float32 \(2, 3\): expected whole numbers"):
        build()(torch.zeros(2, 3))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was trained through the command line."""
    out = tmp_path_factory.mktemp("runs")
    flags = f"--scale tiny --attention linear --steps 12 --batch-size 4 --evaluation-instances 8 --text {FOLDER} -q"
    assert run_cli(["train", "language", *flags.split(), "--num-layers", "1", "--out", str(out)]) == 0
    (path,) = out.iterdir()
    return path


def test_train_keeps_corpus_and_tokenizer(trained):
    config = json.loads((trained / "config.json").read_text())
    task = Language(text=(FOLDER,), context_length=128, num_pairs=4)
    assert config["task"]["corpus"] == task.prepare().corpus
    assert (trained / "tokenizer").read_bytes() == b"bytes"
    result = json.loads((trained / "result.json").read_text())
    assert list(result["scores"]) == ["test", "ood", "text", "recall"]


def test_evaluate_prints_the_loss_by_position(trained, capsys):
    assert run_cli(["evaluate", str(trained), "--num-instances", "8", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    (rows,) = value["tables"].values()
    assert [row["positions"] for row in rows][:3] == ["1 to 1", "2 to 2", "3 to 4"]
    whole = rows[-1]
    assert whole["positions"] == "1 to 128"
    assert whole["cross-entropy"] == pytest.approx(value["scores"]["text"]["loss"]["value"], rel=1e-5)
    assert sum(row["tokens"] for row in rows[:-1]) == whole["tokens"]


def test_generate_prints_text(trained, capsys):
    flags = ["--prompt", "A seed", "--num-tokens", "20", "--seed", "1"]
    assert run_cli(["generate", str(trained), *flags]) == 0
    assert capsys.readouterr().out.startswith("A seed")
    assert run_cli(["generate", str(trained), *flags, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) <= 20


def test_a_run_without_its_text_still_generates(trained, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Language, "_find_corpus", lambda self: pytest.fail("the text was read"))
    monkeypatch.setattr("recombine.tasks.language.corpus.load_corpus", lambda name: None)
    assert run_cli(["generate", str(trained), "--num-tokens", "3"]) == 0
    assert replace(Language(), tokenizer="sentencepiece").vocabulary_size == 4096
