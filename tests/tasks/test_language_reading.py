"""What a probe reads of a language run: commands up to their answers, and the answer under swapped codes."""

import json
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
from recombine.tasks.language.task import Language
from recombine.tasks.sampling import Batch
from recombine.training.directory import RunDirectory

FOLDER = str(Path(__file__).parents[1] / "text")


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def task(request) -> Language:
    if request.param == "sentencepiece":
        pytest.importorskip("sentencepiece")
    sizes: dict[str, Any] = {"context_length": 128, "num_pairs": 4, "vocabulary": 512, "held_out_documents": 0.3}
    return Language(text=(FOLDER,), tokenizer=request.param, **sizes).prepare()


@pytest.mark.parametrize("split", ["test", "ood"])
def test_rows_end_where_answers_begin_to_differ(task, split):
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


def test_only_what_all_answers_share_is_skipped(task):
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
def test_an_answer_that_the_code_decides_follows_it(task, driven):
    found: Any = measure_swaps(AnswerByCode(task, driven=driven), task.reading(), num_instances=200)
    for each in found["splits"].values():
        assert each["base_accuracy"] == 1
        for arm in each["arms"]:
            assert (arm["other"], arm["own"]) == ((1, 0) if driven else (0, 1))
            assert arm["same_rule"] == 1


def test_a_context_without_room_for_an_answer_is_an_error():
    task = Language(text=(FOLDER,), context_length=32, num_pairs=4, held_out_documents=0.3).prepare()
    with pytest.raises(InputError, match="context_length is 32: expected at least 38, the longest command with"):
        next(iter(task.reading().batches("test", 2)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was trained and probed through the command line."""
    out = tmp_path_factory.mktemp("runs")
    sizes = "--scale tiny --attention hyla --num-layers 1 --context-length 48 --steps 12 --batch-size 4"
    flags = ["--evaluation-instances", "20", "--text", FOLDER, "-q", "--out", str(out)]
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


def test_diagnose_and_report(trained, capsys):
    assert run_cli(["diagnose", str(trained), "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["verdict"] == "not learned"  # in 12 steps
    assert diagnosis["evidence"]["metric"] == "accuracy"
    assert diagnosis["evidence"]["decodability"]["site"] in json.loads((trained / "probe.json").read_text())["decoders"]
    page = trained.parent / "report.html"
    assert run_cli(["report", str(trained), "-o", str(page)]) == 0
    text = page.read_text()
    assert "Decoded: the words of the command; from commands of the grammar, up to where their answers begin" in text
    for words in ("not learned", "Held-out documents", "cross-entropy", "Swap the answer", "the swapped-in answer"):
        assert words in text
    assert "squared error with 95 % interval" not in text


def test_a_probe_of_another_reading_is_made_again(trained):
    run = RunDirectory.open(trained)
    assert is_probed(run)
    probe = json.loads((trained / "probe.json").read_text())
    assert probe["key"]["code"].pop("reading") == 2
    kept = (trained / "probe.json").read_bytes()
    (trained / "probe.json").write_text(json.dumps(probe))
    assert not is_probed(run)
    (trained / "probe.json").write_bytes(kept)
