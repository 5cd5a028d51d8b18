"""Models, tokenizers, prompts, data sets and tables of results from strangers: read in one line or refused, never run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recombine.cli.generate import read_tokenizer as read_tokenizer_of_run
from recombine.cli.generate import show_text
from recombine.foundation.errors import InputError
from recombine.integrations.huggingface.prompts import read_prompts
from recombine.tasks.language.tokenizers import read_tokenizer
from recombine.training.directory import RunDirectory
from recombine_papers.stored import read_lines


def test_events_are_not_written_through_a_link(tmp_path):
    pytest.importorskip("tensorboard")
    from recombine.integrations.trackers import TensorBoard

    (tmp_path / "mine").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="is a link"):
        TensorBoard().start(RunDirectory(tmp_path / "run"), 0)
    assert not [*(tmp_path / "mine").iterdir()]


def test_a_pipe_instead_of_a_tokenizer(tmp_path):
    os.mkfifo(tmp_path / "tokenizer")
    for read in (
        lambda: read_tokenizer(str(tmp_path / "tokenizer")),
        lambda: read_tokenizer_of_run(RunDirectory(tmp_path), 300),
        lambda: read_prompts(tmp_path / "tokenizer"),
    ):
        with pytest.raises(InputError, match="it is not a regular file"):
            read()


def test_what_a_model_writes_cannot_command_a_terminal():
    assert show_text("a\n\tb\x1b[2J\x9b\u202ec\r\n") == "a\n\tb\\x1b[2J\\x9b\\u202ec\\r\n"


CODE = "from pathlib import Path\nPath(__file__ + '.ran').touch()\nPath({trace!r}).touch()\n"
CONFIG = {"model_type": "stranger", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}


def test_code_in_the_folder_of_a_model_is_not_run(tmp_path, monkeypatch):
    """Nor is the user asked whether to run it."""
    pytest.importorskip("transformers")
    from recombine.integrations.huggingface.probe import load_model

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "code.py").write_text(CODE.format(trace=str(tmp_path / "trace")))
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(tmp_path, with_head=False)
    assert not (tmp_path / "trace").exists()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    from huggingface_models import build_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    build_model("gpt2", "sdpa").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


DAMAGES: list[tuple[str, Any]] = [
    ("model.safetensors", b"\xff" * 9),
    ("model.safetensors", b""),
    ("tokenizer.json", b"{"),
    ("config.json", b"[]"),
    ("config.json", b"[" * 10**5),
    ("config.json", {"model_type": 5}),
    ("config.json", {"architectures": ["CONFIG_MAPPING"]}),
    ("config.json", {"architectures": [["AutoLM"]]}),
    ("config.json", {"architectures": ["logging.sys.LM"]}),
]


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_a_damaged_model_ends_in_one_line(name, content, pretrained, tmp_path):
    from recombine.integrations.huggingface.probe import load_model

    for path in pretrained.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if isinstance(content, dict):
        content = json.dumps(json.loads((pretrained / name).read_text()) | content).encode()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path, with_head=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[" * 10**5, '{"hash": "a", "result": {}}', '{"hash": 1}', "\0", "nan"]
)
def test_results_that_nobody_stored(content, tmp_path):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InputError, match="expected results that `reproduce claims` wrote"):
        read_lines(tmp_path / "x.jsonl")
