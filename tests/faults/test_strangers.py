"""Files from strangers: nothing in them runs, nothing is written outside the chosen folder, nothing is hidden."""

import ast
import io
import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import recombine
from recombine.cli.generate import show_text
from recombine.foundation import files
from recombine.foundation.display import Table, print_table
from recombine.foundation.errors import NOT_SHOWN, InputError, escape_controls
from recombine.models.base import OutsideModule
from recombine.report.page import write_report
from recombine.sweeps.engine import Job
from recombine.sweeps.local import Worker
from recombine.sweeps.results import as_cell
from recombine.tasks.language.tokenizers import load_tokenizer, read_tokenizer
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import open_directory
from report_cases import HOSTILE, make_probed, make_run, make_score
from small_runs import FAMILIES
from verbs import call

SOURCE = Path(recombine.__file__).parent
FORBIDDEN = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "os.system"}
# where a name becomes a module: verbs, optional packages, classes of this package and code that the user names
IMPORTERS = {"cli/main.py", "foundation/errors.py", "foundation/plugins.py", "tasks/base.py"}


def test_no_file_of_the_package_evaluates_or_unpickles():
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        calls -= {"element.paths.result_pickle.exists"}  # whether submitit has written its file
        assert not calls & FORBIDDEN, path
        assert not [name for name in calls if "pickle" in name], path
        assert not [text for text in ("allow_pickle=True", "shell=True") if text in path.read_text()], path
        if any(name.endswith(("import_module", "exec_module")) for name in calls):
            assert path.relative_to(SOURCE).as_posix() in IMPORTERS, f"{path} imports by name"


@pytest.mark.parametrize(("role", "key"), [("task", "name"), ("model", "kind")])
def test_a_name_in_a_file_is_never_imported(role, key, run, tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((run / "config.json").read_text())
    del config["digest"]
    (run / "checkpoint.safetensors").unlink()  # which has the hash of the configuration
    for name in (f"{tmp_path / 'evil.py'}:X", "os:system", "evil", "../evil"):
        config[role][key] = name
        config["origins"] = {role: f"{tmp_path / 'evil.py'}:X"}
        (run / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match="is not part of this package"):
            load_run(run)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../../../x", "/etc/x", "..", "a/b\\c", "x\0y", "\u202ex", "-rf"])
def test_no_name_leads_out_of_the_folder(name, tmp_path):
    config = FAMILIES["hyperteacher"]
    hostile = RunConfig(task=config.task, model=OutsideModule(name=name, fingerprint="0"), training=config.training)
    made = open_directory(hostile, tmp_path / "runs", {}).path
    assert made.resolve().parent == (tmp_path / "runs").resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_links_are_not_written_through(run, tmp_path):
    """Those with the names of temporary files, and a folder of events."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (run / f".result.json.{files.name_process()}.tmp").symlink_to(precious)
    files.replace_file(run / "result.json", b"new")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(precious)
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        RunDirectory(run).append_metrics({"step": 1, "loss": 1.0})
    assert (precious.read_text(), (run / "result.json").read_bytes()) == ("kept", b"new")
    assert not list(run.glob(".*.tmp"))
    pytest.importorskip("tensorboard")
    from recombine.integrations.trackers import TensorBoard

    (tmp_path / "mine").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="is a link"):
        TensorBoard().start(RunDirectory(run), 0)
    assert not [*(tmp_path / "mine").iterdir()]


@pytest.mark.parametrize("name", ["a[/red]b", "a\x1b]0;title\x07b", "a\nb", "a\u202eb", "[link=file:///x]y"])
def test_the_name_of_a_run_cannot_command_a_terminal(name, pristine, tmp_path):
    """Control characters and line ends are written out, in tables and in complaints."""
    run = Path(shutil.copytree(pristine, tmp_path / name / "run"))
    (tmp_path / name / "empty").mkdir()
    for folder in (tmp_path, run.parent, tmp_path / name / "empty"):
        assert call(["runs", str(folder)]).code == 0
    (run / "checkpoint.safetensors").write_bytes(b"x")
    for argv in (["runs", str(tmp_path)], ["runs", str(run.parent)], ["evaluate", str(run)]):
        answer = call(argv)
        assert answer.code == (2 if argv[0] == "evaluate" else 0)
        shown = answer.out + answer.err
        assert not {sign for sign in shown if unicodedata.category(sign) in NOT_SHOWN and sign != "\n"}
        assert len(answer.err.splitlines()) == (1 if answer.code else 0)


def test_what_a_model_writes_cannot_command_a_terminal():
    assert show_text("a\n\tb\x1b[2J\x9b\u202ec\r\n") == "a\n\tb\\x1b[2J\\x9b\\u202ec\\r\n"


@pytest.mark.parametrize("width", [200, 20])
@pytest.mark.parametrize("text", ["steps [/thousand]", "[red]x", "\x1b[2J\x07", "a\u202eb", "[link=file:///x]y[/link]"])
def test_no_part_of_a_table_can_command_a_terminal(text, width):
    """Title, names of columns, cells and notes may all come from a file."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=True, color_system=None)
    print_table(Table(title=text, columns=(text, "b"), rows=((text, 1.0),), note=f"{text}\n{text}"), console)
    assert shown.getvalue().count(escape_controls(text).split()[0]) >= (5 if width == 200 else 1)
    assert not {sign for sign in shown.getvalue() if unicodedata.category(sign) in NOT_SHOWN and sign != "\n"}


def test_text_in_a_table_of_results_is_no_formula():
    assert [as_cell(value) for value in ('=HYPERLINK("x")', "+1", "-1", "@x", "\t=1", -1.5, "hyla", None)] == [
        '\'=HYPERLINK("x")',
        "'+1",
        "'-1",
        "'@x",
        "'\t=1",
        -1.5,
        "hyla",
        None,
    ]


def test_code_in_the_current_folder_does_not_run_in_workers(tmp_path, monkeypatch):
    """`python -c`, with which a process is spawned, would import `multiprocessing` from there."""
    monkeypatch.chdir(tmp_path)
    for name in ("multiprocessing", "random", "recombine", "submitit"):
        Path(f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    worker = Worker(0)
    worker.start(Job(key="x", config={}, code=(), out=str(tmp_path), device="cpu", threads=1, mark="none"))
    outcome = worker.collect()
    worker.stop()
    worker.join()
    assert outcome is not None
    assert outcome.kind == "folder"
    assert not (tmp_path / "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ


WORDS = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1}, "unk_token": "a"},
}
TOKENIZERS = [
    WORDS | {"model": WORDS["model"] | {"vocab": {"</s>": 0, "a": 2**32 - 1}}},
    WORDS | {"model": WORDS["model"] | {"unk_token": "none"}},
    WORDS | {"decoder": {"type": "Strip", "content": "a", "start": 100, "stop": 100}},
    WORDS | {"model": {"type": "Unigram", "unk_id": None, "vocab": [["</s>", 0.0]]}},
]


@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_a_hostile_tokenizer_ends_in_one_line(number):
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match="the tokenizer") as caught:  # noqa: PT012
        tokenizer = load_tokenizer(json.dumps(TOKENIZERS[number]).encode())
        tokenizer.encode("a b")
        tokenizer.decode([0, 1])
    assert "\n" not in str(caught.value)


def test_an_empty_tokenizer_is_none(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(InputError, match="it is empty"):
        read_tokenizer(str(tmp_path / "tokenizer.json"))


def test_the_policy_of_the_page_blocks_scripts_that_are_not_its_own(browser, tmp_path):
    """Even if escaping failed somewhere: a script, a handler and a request that are put into the page do nothing."""
    runs = [make_run(tmp_path / "runs", HOSTILE[:50], make_score(0.8)), make_probed(tmp_path / "runs", HOSTILE[:40])]
    write_report(runs, tmp_path / "report.html", title=HOSTILE)
    page = (tmp_path / "report.html").read_text()
    planted = (
        "<script>document.title = 'planted'</script>"
        "<img src='http://127.0.0.1:9/x.png' onerror=\"document.title = 'planted'\">"
        "<iframe srcdoc=\"<script>parent.document.title = 'planted'</script>\"></iframe></body>"
    )
    (tmp_path / "planted.html").write_text(page.replace("</body>", planted))
    browser.open(tmp_path / "planted.html")
    browser.run("new Promise(resolve => setTimeout(resolve, 300))")
    assert browser.run("document.title") != "planted"
    assert browser.run("document.querySelector('h1').textContent") == HOSTILE
    assert HOSTILE[:40] in browser.run("document.body.textContent")
    asked = [address for address in browser.find_requests() if address.startswith("http")]
    failed = [event["params"] for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert [event.get("blockedReason") for event in failed] == ["csp"] * len(asked)


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
