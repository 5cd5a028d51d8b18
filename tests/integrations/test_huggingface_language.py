"""Our language model as a model of `transformers`, and back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, StaticCache

from huggingface_models import VOCABULARY, make_tokenizer
from recombine.attention.dispatch import use_kernel
from recombine.foundation.errors import InputError
from recombine.integrations.huggingface import register
from recombine.integrations.huggingface.language_model import (
    RecombineConfig,
    RecombineForCausalLM,
    export_language_model,
    export_run,
    read_mask,
)
from recombine.models.language_model import LanguageModel, LanguageModelConfig, generate
from recombine.tasks.language.task import Language
from recombine.tasks.language.tokenizers import ByteTokenizer
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
    whole = theirs(tokens, labels=labels, num_items_in_batch=torch.tensor(16)).loss
    torch.testing.assert_close(whole, theirs(tokens, labels=labels).loss / 2)  # the sum over 8 terms, by 16


def test_a_run_is_exported_without_its_text(tmp_path, monkeypatch):
    tiny = default_run("language", "tiny")
    changes: dict[str, Any] = {"text": (str(Path(__file__).parents[1] / "text"),), "held_out_documents": 0.3}
    task = replace(tiny.task, **changes)
    config = replace(tiny, task=task, training=replace(tiny.training, steps=1, batch_size=2))
    run = train_run(config, out=tmp_path / "runs", evaluation_instances=4)
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(Language, "_find_corpus", lambda self: pytest.fail("the text was read"))
    theirs: Any = export_run(run.path, tmp_path / "folder")
    tokens = torch.randint(200, (1, 9))
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, load_run(run.path)[2](tokens))
    assert {path.name for path in (tmp_path / "folder").glob("tokenizer*")} == set()  # bytes have no file
    ends = (ByteTokenizer.bos, ByteTokenizer.eos, ByteTokenizer.pad)
    for exported in (theirs.config, theirs.generation_config):
        assert (exported.bos_token_id, exported.eos_token_id, exported.pad_token_id) == ends
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    (run.path / "tokenizer").write_bytes(words.to_str().encode())
    theirs = export_run(run.path, tmp_path / "folder")
    assert (tmp_path / "folder" / "tokenizer.json").read_text() == words.to_str()
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (0, 1)


# what the cache, the masks and the search of transformers must not change
KINDS: dict[str, dict[str, Any]] = {
    "hyla": {},
    "linear": {"attention": "linear"},
    "softmax, relative": {"attention": "softmax", "position": "relative"},
    "mean over keys": {"output_scale": "keys"},
}


@pytest.fixture(params=KINDS)
def theirs(request, tmp_path):
    torch.manual_seed(0)
    model = build(**KINDS[request.param])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that attention matters
    return export_language_model(model, tmp_path)


def draw(rows=2, length=9, seed=0):
    return torch.randint(30, (rows, length), generator=torch.Generator().manual_seed(seed))


def pad(rows, side):
    """Rows of different lengths as one batch, and its mask."""
    length = max(len(row) for row in rows)
    parts = [(row, row.new_full((length - len(row),), 7)) for row in rows]
    masks = [(torch.ones_like(row), torch.zeros_like(padding)) for row, padding in parts]
    order = 1 if side == "right" else -1
    return torch.stack([torch.cat(part[::order]) for part in parts]), torch.stack(
        [torch.cat(m[::order]) for m in masks]
    )


@torch.no_grad()
def test_no_position_sees_a_later_token_or_padding(theirs):
    tokens = draw()
    logits = theirs(tokens).logits
    for position in range(8):
        changed = tokens.clone()
        changed[:, position + 1 :] = (changed[:, position + 1 :] + 1) % 30
        other = theirs(changed).logits
        torch.testing.assert_close(other[:, : position + 1], logits[:, : position + 1], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(other[:, position + 1], logits[:, position + 1])
    for side in ("left", "right"):
        rows = [tokens[0, :4], tokens[1]]
        batch, mask = pad(rows, side)
        for fill in (7, 8):
            found = theirs(batch.masked_fill(mask == 0, fill), attention_mask=mask).logits
            for row, present, alone in zip(found, mask.bool(), rows, strict=True):
                torch.testing.assert_close(row[present], theirs(alone[None]).logits[0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_on_the_right_does_not_change_a_bit():
    theirs = RecombineForCausalLM(export_config()).eval()
    tokens = draw()
    mask = torch.ones_like(tokens)
    mask[:, 6:] = 0
    with use_kernel("reference"):
        found = [theirs(tokens.masked_fill(mask == 0, fill), attention_mask=mask).logits for fill in (7, 8)]
    assert torch.equal(found[0][:, :6], found[1][:, :6])


def export_config():
    return RecombineConfig({**SIZES}, vocab_size=30, max_position_embeddings=32)


@torch.no_grad()
def test_a_token_in_the_middle_can_be_hidden(theirs):
    tokens, mask = draw(), torch.ones(2, 9, dtype=torch.long)
    mask[:, 3] = 0
    found = theirs(tokens, attention_mask=mask).logits
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 30
    seen = mask.bool()
    torch.testing.assert_close(theirs(changed, attention_mask=mask).logits[seen], found[seen], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(theirs(tokens).logits[:, 4:], found[:, 4:])
    pairs = torch.ones(9, 9).tril().bool() & seen[:, None, None, :]
    for same in (pairs, torch.zeros(2, 1, 9, 9).masked_fill(~pairs, -torch.inf)):
        torch.testing.assert_close(theirs(tokens, attention_mask=same).logits, found)


@torch.no_grad()
def test_every_prefix_with_a_cache_gives_the_logits_of_the_whole(theirs):
    tokens = draw(2, 12)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    expected = theirs(tokens, attention_mask=mask).logits
    static = StaticCache(theirs.config, max_cache_len=20)
    for start in (1, 4, 7):
        for cache in (None, static):
            if cache is not None:
                cache.reset()
            parts: list[torch.Tensor] = []
            for first, last in [(0, start), *((i, i + 1) for i in range(start, 12))]:
                step = theirs(
                    tokens[:, first:last], attention_mask=mask[:, :last], past_key_values=cache, use_cache=True
                )
                cache, parts = step.past_key_values, [*parts, step.logits]
            found = torch.cat(parts, dim=1)
            torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found[0, 3:], expected[0, 3:], atol=1e-4, rtol=1e-4)


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "beams of groups": {"num_beams": 4, "num_return_sequences": 2},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_generation_in_a_padded_batch_equals_that_of_each_prompt_alone(theirs, search):
    rows = [draw(1, 4)[0], draw(1, 7, seed=1)[0]]
    batch, mask = pad(rows, "left")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **SEARCHES[search]}
    number = options.get("num_return_sequences", 1)
    for use_cache in (True, False):
        found = theirs.generate(batch, attention_mask=mask, use_cache=use_cache, **options)
        for i, row in enumerate(rows):
            alone = theirs.generate(row[None], attention_mask=torch.ones_like(row[None]), use_cache=False, **options)
            assert torch.equal(found[i * number : (i + 1) * number, 7:], alone[:, len(row) :])


def test_an_assistant_and_a_static_cache_do_not_change_what_is_generated(theirs):
    tokens = draw(1, 5)
    options = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = theirs.generate(tokens, **options)
    assistant = RecombineForCausalLM(export_config()).eval()
    assert torch.equal(theirs.generate(tokens, assistant_model=assistant, **options), expected)
    assert torch.equal(theirs.generate(tokens, prompt_lookup_num_tokens=2, **options), expected)
    assert torch.equal(theirs.generate(tokens, cache_implementation="static", **options), expected)


def test_generation_from_a_tokenizer_stops_at_the_end(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    model = LanguageModel(LanguageModelConfig(**SIZES), num_tokens=VOCABULARY, context_length=32)
    theirs: Any = export_language_model(model, tmp_path)
    inputs = tokenizer(["a b c", "the x"], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    new = theirs.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)[:, 3:]
    theirs.generation_config.eos_token_id = int(new[0, 1])
    stopped = theirs.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)[:, 3:]
    first = (new[0] == new[0, 1]).int().argmax()
    assert torch.equal(stopped[0, : first + 1], new[0, : first + 1])
    assert not stopped[0, first + 1 :].any()


@torch.no_grad()
def test_outputs_are_those_of_our_model(theirs):
    tokens = draw()
    logits, codes = theirs.model(tokens, return_codes=True)
    found = theirs(tokens, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(found.attentions, tuple(codes))
    assert torch.equal(found.hidden_states[0], theirs.model.embedding(tokens))
    torch.testing.assert_close(theirs.model.read(found.hidden_states[-1]), logits, atol=1e-5, rtol=1e-5)
    assert len(found.hidden_states) == 3
    assert torch.equal(theirs(tokens, return_dict=False)[0], theirs(tokens).logits)
    assert torch.equal(theirs(inputs_embeds=found.hidden_states[0]).logits, theirs(tokens).logits)
    torch.testing.assert_close(theirs(tokens, logits_to_keep=2).logits, theirs(tokens).logits[:, -2:])


def test_new_tokens(theirs, tmp_path):
    tokens, before = draw(), theirs.get_input_embeddings().weight.detach().clone()
    theirs.resize_token_embeddings(35)
    assert theirs(tokens).logits.shape == (2, 9, 35)
    assert torch.equal(theirs.model.embedding.weight[:30], before)
    theirs.save_pretrained(tmp_path / "wider")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "wider")
    assert (loaded.model.num_tokens, loaded.config.vocab_size) == (35, 35)
    assert torch.equal(loaded(tokens + 5).logits, theirs(tokens + 5).logits)


@pytest.mark.parametrize(
    "settings", [{}, {"position": "relative", "biases": False, "initialisation": "xavier"}], ids=str
)
def test_weights_that_are_missing_are_drawn_as_ours_are(settings, tmp_path):
    theirs = export_language_model(build(**settings), tmp_path)
    state = {name: value for name, value in theirs.state_dict().items() if "blocks.1" not in name}
    config = theirs.config
    loaded: Any = RecombineForCausalLM.from_pretrained(None, config=config, state_dict=state)
    for (name, value), fresh in zip(loaded.named_parameters(), build(**settings).parameters(), strict=True):
        if "blocks.1" in name:
            torch.testing.assert_close(value.std(), fresh.std(), atol=0.02, rtol=0.25)
            torch.testing.assert_close(value.mean(), fresh.mean(), atol=0.1, rtol=0)
        else:
            assert torch.equal(value, state[name])
    for name, buffer in theirs.named_buffers():
        assert torch.equal(loaded.get_buffer(name), buffer)


def test_sizes_of_the_configuration_are_those_of_the_model():
    config = export_config()
    config.num_hidden_layers = 1
    assert len(RecombineForCausalLM(config).model.blocks) == 1


def test_what_cannot_be_honoured_is_said(theirs):
    tokens = draw()
    for mask in (torch.ones(2, 8), torch.ones(2, 1, 9, 9), torch.ones(9)):
        with pytest.raises(
            InputError, match=r"attention_mask is torch\.float32 .*: expected \(batch, 9\), 0 for padding"
        ):
            theirs(tokens, attention_mask=mask)
    with pytest.raises(InputError, match="position_ids have gaps: expected consecutive positions"):
        theirs(tokens, position_ids=torch.tensor([[0, 1, 2, 4, 5, 6, 7, 8, 9]]))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    theirs(tokens, attention_mask=mask, position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0))
    with pytest.raises(InputError, match="expected either input_ids or inputs_embeds"):
        theirs()
    with pytest.warns(UserWarning, match="the model was made for 32 tokens: got more"):
        theirs(draw(1, 33))
    assert read_mask(torch.ones(2, 9), 9) is None
