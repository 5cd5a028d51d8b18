"""recombine probe-model: prompts as a task, and everything that is measured on a model from a folder."""

import json
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModel

from huggingface_models import WORDS, build_model, make_tokenizer
from recombine.cli import main as cli
from recombine.foundation.errors import InputError
from recombine.integrations.huggingface.probe import PretrainedModel, probe_pretrained
from recombine.integrations.huggingface.prompts import Prompts, read_prompts

LETTERS, ENDS = ("a", "b", "c"), ("x", "y", "z")


def make_rows(**more):
    """Every pair of a letter and an end, in prompts of different lengths."""
    return [
        {"text": f"{start} {letter} and {end}{' so' * (number % 3)}", "labels": [letter, end], **more}
        for letter in LETTERS
        for end in ENDS
        for number, start in enumerate(("the", "of", "so", "the of", "the so", "of so"))
    ]


def write_prompts(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    build_model("llama", "sdpa").save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", make_rows())
    return Prompts(file=read_prompts(path), tokenizer=make_tokenizer())


def test_the_split_holds_out_compositions_and_deals_the_rest(task):
    assert (len(task.split.train), len(task.split.ood)) == (7, 2)
    assert {split: len(rows) for split, rows in task.rows.items()} == {"train": 21, "test": 21, "ood": 12}
    texts = {split: {prompt.row.text for prompt in rows} for split, rows in task.rows.items()}
    assert not texts["train"] & texts["test"]
    assert not texts["test"] & texts["ood"]
    batch = task.sample("ood", 0, batch_size=500)
    assert len(batch) == 12
    assert [task.render(batch, row) for row in range(2)] == [prompt.row.text for prompt in task.rows["ood"][:2]]
    assert [task.classes[target] for target in batch.targets[:2]] == [
        task.describe(prompt.composition) for prompt in task.rows["ood"][:2]
    ]
    (joined,) = task.reading().batches("test", 10)
    assert task.render(joined, 0) == task.rows["train"][0].row.text
    assert task.render(joined, 1) == task.rows["test"][0].row.text
    assert task.metrics(task.best_predictions(batch, split="ood", metric="accuracy"), batch)["accuracy"].numerator.all()


def test_codes_are_turned_so_that_the_pair_comes_last(task, folder):
    model = PretrainedModel(AutoModel.from_pretrained(folder).eval(), task)
    batch = task.sample("test", 0, batch_size=5)
    with torch.no_grad():
        state, codes = model(batch.inputs, return_codes=True)
        torch.testing.assert_close(model(batch.inputs), state, atol=1e-5, rtol=1e-4)
        for row in range(5):
            tokens = batch.inputs[row, 2:]
            tokens = tokens[tokens >= 0][None]
            model.model.set_attn_implementation("eager")
            alone = model.model(tokens, output_attentions=True)
            torch.testing.assert_close(
                codes[1][row, :, -1, -1], alone.attentions[1][0, :, -1, -1], atol=1e-5, rtol=1e-3
            )
            torch.testing.assert_close(
                codes[0][row, :, -1, -2], alone.attentions[0][0, :, -1, -2], atol=1e-5, rtol=1e-3
            )
        same = model(batch.inputs, code_maps=[lambda codes: codes, None])
        torch.testing.assert_close(same, state, atol=1e-5, rtol=1e-4)
        # what a change puts on padding has no effect
        ones = model(batch.inputs, return_codes=True, code_maps=[torch.ones_like, None])[1][0]
        assert torch.equal(ones != 0, codes[0] != 0)


def test_everything_is_measured_and_kept(folder, tmp_path):
    prompts = write_prompts(tmp_path / "prompts.jsonl", make_rows())
    said: list[str] = []
    before = torch.get_rng_state()
    run, result = probe_pretrained(folder, prompts, out=tmp_path, tsne=False, num_instances=60, say=said.append)
    numbers: Any = result.numbers
    assert torch.equal(torch.get_rng_state(), before)  # the caller's generator is not touched
    assert {"decoders", "structure", "similarity", "ablations", "swap"} <= numbers.keys()
    assert [site["name"] for site in numbers["sites"]] == ["codes.0", "codes.1", "residual.0", "residual.1"]
    assert "untrained" in numbers["decoders"]["codes.0"]["ood"]
    assert numbers["swap"]["splits"]["test"]["num_rows"] == 21
    assert numbers["modules"] == ["a", "b", "c", "x", "y", "z"]
    # the words themselves are in the prompt, so the residual stream tells more than chance
    assert numbers["ablations"]["base"]["test"] > 1.5 / 7
    again, kept = probe_pretrained(folder, prompts, out=tmp_path, tsne=False, num_instances=60)
    assert (again.path, kept.numbers) == (run.path, numbers)
    code = cli.run(["report", str(run.path), "-o", str(tmp_path / "report.html"), "--quiet"])
    assert code == 0
    page = (tmp_path / "report.html").read_text()
    assert "Decodability" in page
    assert "Ablations" in page
    assert "A pretrained model on labelled prompts, not trained here" in page


def test_answers_are_read_from_the_logits(folder, tmp_path, capsys):
    rows = [{**row, "answer": {"a": "yes", "b": "no", "c": "yet"}[row["labels"][0]]} for row in make_rows()]
    prompts = write_prompts(tmp_path / "prompts.jsonl", rows)
    options = ["--prompts", str(prompts), "-o", str(tmp_path), "--no-tsne", "--num-instances", "20", "--json"]
    assert cli.run(["probe-model", str(folder), *options]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["swap"]["rules"] == ["no", "yes", "yet"]


def test_a_label_each_holds_nothing_out(tmp_path):
    rows = [{"text": f"the {letter} {number}", "label": letter} for letter in LETTERS for number in range(3)]
    file = read_prompts(write_prompts(tmp_path / "prompts.jsonl", rows))
    split = file.make_split(0.25, 0)
    assert (len(split.train), len(split.ood)) == (3, 0)
    given = [{**row, "split": "ood" if row["label"] == "c" else "train"} for row in rows]
    split = read_prompts(write_prompts(tmp_path / "given.jsonl", given)).make_split(0.25, 0)
    assert (split.train, split.ood) == (((0,), (1,)), ((2,),))


GOOD = {"text": "the a", "label": "a"}
DIFFERENT = [{**GOOD, "text": f"the a {number}"} for number in range(4)]
PAIRS = [{**GOOD, "pair": [-1, key]} for key in (0, 1, 2, 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"line 1 cannot be read"),
        (b"[" * 10**5, r"line 1 cannot be read \(it is nested too deeply\)"),
        (b"\xff\xfe", r"it is not UTF-8 text"),
        ([{"label": "a"}], r"line 1: text is missing"),
        ([{**GOOD, "colour": 1}], r"line 1: it: object contains unknown field colour"),
        ([{"text": "the", "labels": "a"}], r"line 1: labels: expected array, got str"),
        ([{"text": "the", "labels": ["a", "a"]}], r"line 1 has labels \['a', 'a'\]: expected different words"),
        ([{**GOOD, "pair": [1]}], r"line 1: pair: expected array of length 2"),
        ([{**GOOD, "split": "test"}], r"line 1: split: invalid enum value 'test'"),
        ([{**GOOD, "answer": ""}], r"line 1: answer: expected str of length >= 1"),
        ([GOOD], r"has 1 prompts: expected at least 4"),
        ([*DIFFERENT, {**GOOD, "answer": "b"}], r"line 5: expected 'answer' in every line or in none"),
        (PAIRS, r"line 4 repeats line 2: expected prompts that differ in text or pair"),
    ],
)
def test_faults_of_a_prompts_file(content, message, tmp_path):
    path = tmp_path / "prompts.jsonl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_prompts(path, content)
    with pytest.raises(InputError, match=message):
        read_prompts(path)


def test_other_faults(folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    with pytest.raises(InputError, match=r"prompts.jsonl cannot be read \(No such file"):
        read_prompts(prompts)
    for num_trained, message in ((2, "prompts with 'a' are in train and in ood"), (0, "every prompt is in ood")):
        rows = [{**row, "split": "train" if i < num_trained else "ood"} for i, row in enumerate(DIFFERENT)]
        with pytest.raises(InputError, match=message):
            read_prompts(write_prompts(prompts, rows)).make_split(0.25, 0)
    alone = read_prompts(write_prompts(prompts, [{"text": f"the {w}", "labels": [w, "any"]} for w in WORDS[2:8]]))
    with pytest.raises(InputError, match="no composition of labels has two prompts"):
        _ = Prompts(file=alone, tokenizer=make_tokenizer(), held_out=0.0).rows
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    alike = [{**row, "answer": f"yes {row['labels'][0]}"} for row in make_rows()]
    for model, rows, options, message in (
        (folder, make_rows(), {"max_tokens": 2}, r"tokens: expected 1 to 2 \(--max-tokens\)"),
        (tmp_path, make_rows(), {}, r"has no config.json: expected a folder that save_pretrained wrote"),
        (folder, alike, {}, "begin with the same token"),
        (tmp_path / "broken", make_rows(), {}, "broken cannot be loaded"),
    ):
        with pytest.raises(InputError, match=message):
            probe_pretrained(model, write_prompts(prompts, rows), out=tmp_path, **options)
