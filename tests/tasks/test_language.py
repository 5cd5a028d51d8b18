"""The language task: what its rows hold, what is scored, and which grammar is held out."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.language import rows as grammar
from recombine.tasks.language import rows as recall
from recombine.tasks.language.rows import GRAMMAR, RECALL, TEXT
from recombine.tasks.language.task import Language
from recombine.training.config import default_run
from recombine.training.score import score

FOLDER = Path(__file__).parents[1] / "text"


@pytest.fixture(scope="module")
def task() -> Language:
    return Language(text=(str(FOLDER),), context_length=128, num_pairs=4, held_out_documents=0.3).prepare()


def test_the_corpus_is_part_of_the_settings(task):
    assert task.corpus is not None
    assert task.prepare() == task
    assert replace(task, corpus=None).prepare() == task
    with pytest.raises(InputError, match=rf"the text is now corpus {task.corpus}: expected 0123, which the run was"):
        _ = replace(task, corpus="0123").tokens


def test_training_rows_are_text_grammar_and_recall(task):
    batch = task.sample("train", 0, batch_size=400)
    kinds = batch.info["kind"]
    assert 0.05 < (kinds == GRAMMAR).float().mean() < 0.15
    assert 0.05 < (kinds == RECALL).float().mean() < 0.15
    assert batch.info["scored"][kinds == TEXT].all()
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    trained = set(task.split.train)
    for row in (kinds == GRAMMAR).nonzero()[:, 0].tolist():
        for line in task.tokenizer_in_use.decode(batch.inputs[row].tolist()).split("\n")[1:-1]:
            command, answer = line.split(":")
            composition = tuple(grammar.WORDS.index(word) for word in command.split())
            assert composition in trained
            assert (f"{command}:", f"{answer}\n") == grammar.write_command(composition)


@pytest.mark.parametrize("split", ["test", "ood"])
def test_the_answer_of_the_last_command_is_scored(task, split):
    batch = task.sample(split, 0, batch_size=50)
    for row in range(50):
        composition = task.split.compositions(split)[batch.composition[row]]
        assert composition == tuple(batch.latents[row].tolist())
        command, answer = grammar.write_command(composition)
        decode = task.tokenizer_in_use.decode
        assert decode(batch.targets[row][batch.info["scored"][row]].tolist()) == answer
        assert decode([*batch.inputs[row].tolist(), int(batch.targets[row, -1])]).endswith(command + answer)


def test_held_out_pairs_are_never_trained(task):
    trained = {composition[:2] for composition in task.split.train}
    held_out = {composition[:2] for composition in task.split.ood}
    assert not trained & held_out
    assert len(held_out) == 16
    certificate = task.split.certificate
    assert certificate.min_coverage > 0
    assert certificate.connected
    assert certificate.overlap == 0


def test_recall_is_determined_by_the_row(task):
    batch = task.sample("recall", 0, batch_size=20)
    for row in range(20):
        tokens = [*batch.inputs[row].tolist(), int(batch.targets[row, -1])]
        pairs = dict(zip(tokens[0:8:2], tokens[1:8:2], strict=True))
        assert len(pairs) == 4
        asked = dict(zip(tokens[8::2], tokens[9::2], strict=True))
        assert asked == pairs
        assert batch.info["scored"][row].nonzero()[:, 0].tolist() == [8, 10, 12, 14]
        assert task.tokenizer_in_use.rare[batch.composition[row]] == tokens[8]


def test_text_rows_are_held_out_documents(task):
    batch = task.sample("text", 0, batch_size=30)
    trained = task.tokenizer_in_use.decode(task.tokens.window(0, task.tokens.num_tokens).tolist())
    for row in range(30):
        scored = batch.targets[row][batch.info["scored"][row]].tolist()
        assert task.tokenizer_in_use.decode(scored) not in trained
    assert batch.composition.max() < task.tokens.num_documents["held_out"]


def test_scores_are_those_of_the_definition(task):
    batch = task.sample("text", 0, batch_size=5)
    logits = torch.randn(*batch.targets.shape, task.output_dim)
    metrics = task.metrics(logits, batch)
    chosen = batch.info["scored"]
    expected = -logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0][chosen].double().sum()
    assert metrics["loss"].numerator.sum() == pytest.approx(expected.item(), rel=1e-5)
    bits = metrics["bits_per_byte"]
    num_bytes = sum(
        len(task.tokenizer_in_use.decode(row[mask].tolist()).encode())
        for row, mask in zip(batch.targets, chosen, strict=True)
    )
    assert bits.denominator.sum() == num_bytes
    assert bits.numerator.sum() == pytest.approx(expected.item() / math.log(2), rel=1e-5)
    assert task.loss(logits, batch).item() == pytest.approx((expected / chosen.sum()).item(), rel=1e-5)


def test_references_enclose_what_can_be_reached(task):
    copy = torch.nn.functional.one_hot
    scores = score(lambda inputs: copy(inputs, task.output_dim).float(), task, num_instances=60)
    for split in ("test", "ood", "recall"):
        accuracy, loss = scores[split]["accuracy"], scores[split]["loss"]
        assert accuracy.ceiling == 1
        assert accuracy.chance < 0.2
        assert 0 <= loss.ceiling < 1e-6 < loss.chance < loss.value
    assert list(scores["text"]) == ["bits_per_byte", "loss", "accuracy"]
    assert scores["text"]["loss"].low < scores["text"]["loss"].high


def test_describe_and_render(task):
    assert task.describe((0, 8, 16)) == "dax wug once"
    assert task.describe((1003,)) == "document 3"
    assert task.describe((105,)) == "key 5"
    assert "answer: " in task.render(task.sample("ood", 0, batch_size=1), 0)
    assert task.render(task.sample("text", 0, batch_size=1), 0)
    assert len(task.render(task.sample("recall", 0, batch_size=1), 0).split()) == 15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_length": 60}, "context_length is 60: expected at least 4 num_pairs = 64"),
        ({"num_pairs": 65, "context_length": 512}, "num_pairs is 65: expected at most 64"),
        ({"held_out_documents": 0.0}, r"held_out_documents is 0\.0: expected between 0 and 1"),
        ({"grammar_fraction": -0.1}, r"grammar_fraction is -0\.1: expected a number from 0 to 1"),
        (
            {"grammar_fraction": 0.6, "recall_fraction": 0.6},
            r"grammar_fraction \+ recall_fraction is 1\.2: expected at most 1",
        ),
        ({"text": ("a",), "dataset": "b"}, "text and dataset are both given: expected one of them"),
    ],
)
def test_impossible_settings_are_errors(settings, message):
    with pytest.raises(InputError, match=message):
        Language(**settings)


def test_models_for_features_are_refused(task):
    with pytest.raises(InputError, match="does not fit task 'language', which has numbers of tokens as inputs"):
        build_model(TransformerConfig(causal=True), task, seed=0)


def test_rows_of_a_mixed_batch_are_those_of_their_kind_made_for_every_row(task):
    rows, stream = task._rows, task.stream("train", 5, batch_size=300, rows=None, device="cpu")
    batch, length = task.make_batch("train", stream), task.context_length + 1
    stream = task.stream("train", 5, batch_size=300, rows=None, device="cpu")
    stream.uniform(1)
    starts = (stream.bits(1)[:, 0] & (2**63 - 1)) % task.tokens.num_tokens
    task.draw_compositions("train", stream)
    grammatical = rows._pack("train", stream, length)
    recalling = recall.draw_recall(stream, task.tokenizer_in_use, task.num_pairs, length)
    windows = np.stack([task.tokens.window(int(start), length) for start in starts]).astype(np.int64)
    text = torch.from_numpy(windows), torch.ones(windows.shape, dtype=torch.bool)
    kind = batch.info["kind"]
    for each, (tokens, scored, *_) in ((TEXT, text), (GRAMMAR, grammatical), (RECALL, recalling)):
        assert (kind == each).any()
        assert torch.equal(batch.inputs[kind == each], tokens[kind == each, :-1])
        assert torch.equal(batch.targets[kind == each], tokens[kind == each, 1:])
        assert torch.equal(batch.info["scored"][kind == each], scored[kind == each, 1:])


def test_small_batches_are_made_in_groups_and_large_ones_alone():
    for scale, expected in (("tiny", 16), ("small", 1), ("paper", 1)):
        run = default_run("language", scale)
        assert run.task.count_batches_at_once(run.training.batch_size) == expected
