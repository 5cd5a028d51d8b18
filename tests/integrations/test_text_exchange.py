"""Prompts as files: exports for lm-evaluation-harness, responses and logged samples scored, models behind an API."""

import json
from typing import Any

import pytest
import torch

import recombine
from recombine.cli.main import run as run_verb
from recombine.integrations.exchange.predictions import read_predictions, score_predictions
from recombine.integrations.exchange.text import make_prompts, write_text

RAVEN = recombine.SRaven(num_features=2, num_values=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    write_text(RAVEN, ["test", "ood"], 12, path, num_examples=1)
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_exported_task_names_local_files_and_both_parsers(folder):
    assert {path.name for path in folder.iterdir()} == {
        "prompts.jsonl",
        "recombine_sraven.yaml",
        *(f"recombine_sraven_{split}.{kind}" for split in ("test", "ood") for kind in ("jsonl", "yaml")),
    }
    lines = (folder / "recombine_sraven_ood.yaml").read_text().splitlines()
    config = {key: json.loads(value) for key, _, value in (line.partition(": ") for line in lines)}
    assert config["dataset_kwargs"]["data_files"]["test"] == str(folder / "recombine_sraven_ood.jsonl")
    form = RAVEN.text_form()
    found = {each["name"]: each["filter"][0]["regex_pattern"] for each in config["filter_list"]}
    assert found == {parser: form.expression(parser) for parser in ("strict", "lenient")}
    assert read_lines(folder / "prompts.jsonl") == [
        row for split in ("test", "ood") for row in make_prompts(form, split, 12, num_examples=1)
    ]


def test_responses_are_scored(folder, tmp_path, capsys):
    rows = read_lines(folder / "prompts.jsonl")
    texts = [f"I think it is {row['targets'][0]}" for row in rows]
    texts[-3:] = ["no idea", "", "9 9"]
    path = write_lines(
        tmp_path / "r.jsonl", [{"row_id": r["row_id"], "response": t} for r, t in zip(rows, texts, strict=True)]
    )
    scored = score_predictions(RAVEN, read_predictions(path))
    assert scored.scores["test"]["accuracy"].value == 1
    assert scored.scores["ood"]["accuracy"].value == 9 / 12
    assert scored.unparsed == {"test": 0, "ood": 2}
    flags = ["--num-features", "2", "--num-values", "4"]
    assert run_verb(["score", "sraven", str(path), "--parser", "strict", *flags]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "which count as wrong: 12 of 12 (test), 11 of 12 (ood)" in shown


def test_logged_samples_of_the_harness_are_scored_from_several_files(folder, tmp_path):
    paths = []
    for split in ("test", "ood"):
        rows = read_lines(folder / f"recombine_sraven_{split}.jsonl")
        samples = [
            {"doc_id": number, "doc": row, "resps": [[row["targets"][0]]], "filter": parser}
            for parser in ("strict", "lenient")
            for number, row in enumerate(rows)
        ]
        paths.append(write_lines(tmp_path / f"samples_{split}.jsonl", samples))
    scored = score_predictions(RAVEN, read_predictions(*paths))
    assert [scores["accuracy"].value for scores in scored.scores.values()] == [1, 1]
    assert scored.verdict.verdict in ("solved", "ambiguous")
    broken = write_lines(tmp_path / "broken.jsonl", [{"doc": {"question": 1}, "resps": [["a"]], "filter": "lenient"}])
    with pytest.raises(recombine.InputError, match="have no row_id or no response"):
        read_predictions(broken)


def test_files_of_different_kinds_are_refused(folder, tmp_path):
    rows = read_lines(folder / "prompts.jsonl")
    first = write_lines(tmp_path / "a.jsonl", [{"row_id": rows[0]["row_id"], "response": "1 1"}])
    second = write_lines(tmp_path / "b.jsonl", [{"row_id": rows[1]["row_id"], "answer": [1, 1]}])
    third = write_lines(tmp_path / "c.jsonl", [{"row_id": rows[2]["row_id"], "answer": [1]}])
    with pytest.raises(recombine.InputError, match="the files hold answer and response columns: expected one kind"):
        read_predictions(first, second)
    with pytest.raises(recombine.InputError, match=r"answer has shape \(1,\) in one file and \(2,\) in another"):
        read_predictions(second, third)
    number = write_lines(tmp_path / "d.jsonl", [{"row_id": rows[0]["row_id"], "response": 1}])
    with pytest.raises(recombine.InputError, match="is int: expected text"):
        read_predictions(number)


def test_blind_prompts_have_no_answers(tmp_path, capsys):
    flags = ["--scale", "tiny", "--format", "text", "--blind", "--num-instances", "2"]
    assert run_verb(["export", "fuzzy-logic", *flags, "-o", str(tmp_path / "blind"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 6
    assert [path.name for path in (tmp_path / "blind").iterdir()] == ["prompts.jsonl"]
    assert all("targets" not in row for row in read_lines(tmp_path / "blind" / "prompts.jsonl"))
    assert run_verb(["export", "sraven", "--format", "text", "--worked-examples", "99"]) == 2
    assert "num_examples is 99: expected 0 to 64" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run_verb(["export", "sraven", "--format", "text", "-o", str(tmp_path / "file")]) == 2
    assert "is a file: expected a folder" in capsys.readouterr().err


def make_language_model(path):
    """A GPT-2 from a configuration, which knows a few words and answers with digits."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["[UNK]", "<eos>", *map(str, range(8)), "|", "?", "Answer", ":", "Row"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="<eos>", pad_token="<eos>")
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.5}
    config = GPT2Config(vocab_size=len(words), bos_token_id=1, eos_token_id=1, tie_word_embeddings=False, **sizes)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[2:6] = torch.randn(4, 32)
    fast.save_pretrained(path)
    model.save_pretrained(path)


@pytest.mark.slow
def test_the_harness_and_score_agree(tmp_path, monkeypatch):
    """The accuracy that lm-evaluation-harness prints is that of the answers it logged."""
    for package in ("lm_eval", "accelerate", "transformers"):
        pytest.importorskip(package)
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    write_text(RAVEN, ["test", "ood"], 100, tmp_path / "task")
    make_language_model(tmp_path / "model")
    results = simple_evaluate(
        model="hf",
        model_args=f"pretrained={tmp_path / 'model'}",
        tasks=["recombine_sraven"],
        task_manager=TaskManager(include_path=str(tmp_path / "task")),
        gen_kwargs="max_gen_toks=2",
        device="cpu",
        batch_size=50,
        log_samples=True,
    )
    files = [
        write_lines(tmp_path / f"{name}.jsonl", [{key: row[key] for key in ("doc", "resps", "filter")} for row in rows])
        for name, rows in results["samples"].items()
    ]
    for parser in ("strict", "lenient"):
        scored = score_predictions(RAVEN, read_predictions(*files, parser=parser), parser=parser)
        for split in ("test", "ood"):
            accuracy = results["results"][f"recombine_sraven_{split}"][f"exact_match,{parser}"]
            assert scored.scores[split]["accuracy"].value == pytest.approx(accuracy)
            assert accuracy > 0


def test_the_api_example_asks_every_prompt_once(folder, tmp_path):
    import runpy
    import sys
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from pathlib import Path

    prompts = {row["prompt"]: row["targets"][0] for row in read_lines(folder / "prompts.jsonl")}
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["messages"][0]["content"])
            reply = json.dumps({"choices": [{"message": {"content": f"Answer: {prompts[asked[-1]]}"}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    example = Path(__file__).parents[2] / "examples" / "ask_api.py"
    url = f"http://127.0.0.1:{server.server_port}"
    files = [str(folder / "prompts.jsonl"), str(tmp_path / "answers.jsonl")]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["ask_api.py", *files, "--model", "any", "--url", url])
            for _ in range(2):
                runpy.run_path(str(example), run_name="__main__")
    finally:
        server.shutdown()
        server.server_close()
    assert sorted(asked) == sorted(prompts)
    assert (
        score_predictions(RAVEN, read_predictions(files[1], parser="strict"), parser="strict")
        .scores["ood"]["accuracy"]
        .value
        == 1
    )
