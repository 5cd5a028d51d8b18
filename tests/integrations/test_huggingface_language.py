"""Our language model as a model of `transformers`, and back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM

from recombine.foundation.errors import InputError
from recombine.integrations.huggingface import register
from recombine.integrations.huggingface.language_model import export_language_model, export_run
from recombine.models.language_model import LanguageModel, LanguageModelConfig, generate
from recombine.tasks.language.task import Language
from recombine.training.benchmark import load_run
from recombine.training.config import default_run
from recombine.training.run import train_run

register()
SIZES: dict[str, Any] = {"num_layers": 2, "embedding_dim": 16, "kqv_dim": 16, "mlp_dim": 24, "num_heads": 4}


def build(**settings):
    config = LanguageModelConfig(**SIZES, **settings)
    return LanguageModel(config, num_tokens=30, context_length=32).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention": "linear", "biases": False, "position": "relative"},
        {"attention": "softmax", "qk_norm": True, "feedforward": "swiglu"},
        {"attention": "hyla_deep"},
    ],
    ids=str,
)
def test_there_and_back(settings, tmp_path):
    model = build(**settings)
    export_language_model(model, tmp_path)
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    ours = theirs.model
    tokens = torch.randint(30, (2, 9))
    with torch.no_grad():
        expected = model(tokens)
        assert torch.equal(theirs(tokens).logits, expected)
        assert torch.equal(ours(tokens), expected)
    assert ours.config == model.config
    continued = theirs.generate(tokens[:1], max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert continued[0, 9:].tolist() == list(generate(model, tokens[0].tolist(), num_tokens=5, temperature=0.0))
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_the_loss_is_that_of_the_next_token_and_ignores_padding(tmp_path):
    theirs = export_language_model(build(), tmp_path)
    tokens = torch.randint(30, (2, 6))
    labels = tokens.clone()
    labels[1, 4:] = -100
    mask = (labels != -100).long()
    alone = [tokens[:1], tokens[1:, :4]]
    losses = [theirs(rows, labels=rows).loss * (rows.shape[1] - 1) for rows in alone]
    torch.testing.assert_close(theirs(tokens, attention_mask=mask, labels=labels).loss, sum(losses) / 8)
    with pytest.raises(InputError, match="hides the first token: expected padding on the right"):
        theirs(tokens, attention_mask=mask.flip(1))


def test_a_run_is_exported_without_its_text(tmp_path, monkeypatch):
    tiny = default_run("language", "tiny")
    changes: dict[str, Any] = {"text": (str(Path(__file__).parents[1] / "text"),), "held_out_documents": 0.3}
    task = replace(tiny.task, **changes)
    config = replace(tiny, task=task, training=replace(tiny.training, steps=1, batch_size=2))
    run = train_run(config, out=tmp_path / "runs", evaluation_instances=4)
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(Language, "_find_corpus", lambda self: pytest.fail("the text was read"))
    theirs = export_run(run.path, tmp_path / "folder")
    tokens = torch.randint(200, (1, 9))
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, load_run(run.path)[2](tokens))
    assert {path.name for path in (tmp_path / "folder").glob("tokenizer*")} == set()  # bytes have no file
    (run.path / "tokenizer").write_bytes(b'{"model": null}')
    export_run(run.path, tmp_path / "folder")
    assert (tmp_path / "folder" / "tokenizer.json").read_bytes() == b'{"model": null}'
