"""The language task: what its rows hold, what is scored, which grammar is held out, and what a probe reads."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from recombine.cli.main import run as run_cli
from recombine.foundation.errors import InputError
from recombine.inside.intervene import measure_swaps
from recombine.inside.probe import is_probed
from recombine.tasks.language import rows as grammar
from recombine.tasks.language.rows import GRAMMAR, RECALL, TEXT
from recombine.tasks.language.task import Language
from recombine.tasks.sampling import Batch
from recombine.training.directory import RunDirectory
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
    assert (certificate.min_coverage > 0, certificate.connected, certificate.overlap) == (True, True, 0)


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
    scores = score(lambda inputs: one_hot(inputs, task.output_dim).float(), task, num_instances=60)
    for split in ("test", "ood", "recall"):
        accuracy, loss = scores[split]["accuracy"], scores[split]["loss"]
        assert accuracy.ceiling == 1
        assert accuracy.chance < 0.2
        assert 0 <= loss.ceiling < 1e-6 < loss.chance < loss.value
    assert list(scores["text"]) == ["bits_per_byte", "loss", "accuracy"]
    assert scores["text"]["loss"].low < scores["text"]["loss"].high


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def read_task(request) -> Language:
    if request.param == "sentencepiece":
        pytest.importorskip("sentencepiece")
    sizes: dict[str, Any] = {"context_length": 128, "num_pairs": 4, "vocabulary": 512, "held_out_documents": 0.3}
    return Language(text=(str(FOLDER),), tokenizer=request.param, **sizes).prepare()


@pytest.mark.parametrize("split", ["test", "ood"])
def test_rows_end_where_answers_begin_to_differ(read_task, split):
    task = read_task
    reading: Any = task.reading()
    decode = task.tokenizer_in_use.decode
    batch = Batch.join(list(reading.batches(split, 60)))
    whole = task.sample(split, 0, batch_size=1000, rows=range(60))
    assert torch.equal(batch.composition, whole.composition)
    for row in range(60):
        command, answer = grammar.write_command(task.split.compositions(split)[batch.composition[row]])
        tokens = batch.inputs[row].tolist()
        begun = task.tokenizer_in_use.encode(answer)[: reading.sentences.num_shared + 1]
        assert decode(tokens).endswith("\n" + command + decode(begun[:-1]))
        assert reading.target(batch)[row] == begun[-1]
        assert decode(whole.inputs[row].tolist()).count(decode(tokens)) == 1  # nothing but the answer was cut off
        read = decode([tokens[key] for key in reading.keys])
        assert (command + decode(begun[:-1])).endswith(read)
    assert batch.info["scored"].sum() == 60
    assert batch.info["scored"][:, -1].all()


def test_only_what_all_answers_share_is_skipped(read_task):
    task = read_task
    reading: Any = task.reading()
    answers = [task.tokenizer_in_use.encode(grammar.write_command(each)[1]) for each in task.split.train]
    shared = reading.sentences.num_shared
    assert len({tuple(answer[:shared]) for answer in answers}) == 1
    assert len({answer[shared] for answer in answers}) > 8
    assert (shared == 1) == (task.tokenizer == "bytes")  # one token for the space, or none alone


class AnswerByCode(nn.Module):
    """Knows the answer's beginning and writes it as a code at the last token; says what the code then is, or what it knew."""

    def __init__(self, task: Language, *, driven: bool) -> None:
        super().__init__()
        self.task, self.driven, self.unused = task, driven, nn.Parameter(torch.zeros(()))
        self.known: dict[tuple[int, ...], int] = {}
        splits: list[Any] = ["test", "ood"]
        for split in splits:
            batch = Batch.join(list(task.reading().batches(split, 200)))
            self.known |= dict(zip(map(tuple, batch.inputs.tolist()), batch.targets[:, -1].tolist(), strict=True))

    def forward(self, inputs, *, return_codes=False, code_maps=None):
        answers = torch.tensor([self.known[tuple(row)] for row in inputs.tolist()])
        codes = one_hot(answers, self.task.output_dim).float()[:, :, None, None].expand(-1, -1, 1, inputs.shape[1])
        if code_maps is not None and code_maps[0] is not None:
            codes = code_maps[0](codes)
        said = codes[:, :, -1, -1] if self.driven else one_hot(answers, self.task.output_dim).float()
        predictions = torch.zeros(*inputs.shape, self.task.output_dim)
        predictions[:, -1] = said
        return (predictions, [codes]) if return_codes else predictions


@pytest.mark.parametrize("driven", [True, False])
def test_an_answer_that_the_code_decides_follows_it(read_task, driven):
    task = read_task
    found: Any = measure_swaps(AnswerByCode(task, driven=driven), task.reading(), num_instances=200)
    for each in found["splits"].values():
        assert each["base_accuracy"] == 1
        for arm in each["arms"]:
            assert (arm["other"], arm["own"]) == ((1, 0) if driven else (0, 1))
            assert arm["same_rule"] == 1


def test_a_context_without_room_for_an_answer_is_an_error():
    task = Language(text=(str(FOLDER),), context_length=32, num_pairs=4, held_out_documents=0.3).prepare()
    with pytest.raises(InputError, match="context_length is 32: expected at least 38, the longest command with"):
        next(iter(task.reading().batches("test", 2)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was trained and probed through the command line."""
    out = tmp_path_factory.mktemp("runs")
    sizes = "--scale tiny --attention hyla --num-layers 1 --context-length 48 --steps 12 --batch-size 4"
    flags = ["--evaluation-instances", "20", "--text", str(FOLDER), "-q", "--out", str(out)]
    assert run_cli(["train", "language", *sizes.split(), *flags]) == 0
    (path,) = out.iterdir()
    assert run_cli(["probe", str(path), "--num-instances", "60", "--no-tsne", "--json"]) == 0
    return path


def test_probe_reads_the_words_of_the_command(trained):
    probe = json.loads((trained / "probe.json").read_text())
    assert probe["reading"]["codes"] == "the last token attending to the command"
    assert probe["modules"] == list(grammar.WORDS)
    assert set(probe["skipped"]) == {"tsne"}
    assert set(probe["decoders"]) == {"codes.0", "normed.0", "hidden.0"}
    assert probe["ablations"]["metric"] == "accuracy"
    assert len(probe["ablations"]["layers"]) == 3
    assert len(probe["ablations"]["heads"]) == 4 * 2
    assert probe["swap"]["kind"] == "rules"
    assert probe["swap"]["splits"]["ood"]["num_rows"] > 30


def test_a_probe_of_another_reading_is_made_again(trained):
    run = RunDirectory.open(trained)
    assert is_probed(run)
    probe = json.loads((trained / "probe.json").read_text())
    assert probe["key"]["code"].pop("reading") == 2
    kept = (trained / "probe.json").read_bytes()
    (trained / "probe.json").write_text(json.dumps(probe))
    assert not is_probed(run)
    (trained / "probe.json").write_bytes(kept)
