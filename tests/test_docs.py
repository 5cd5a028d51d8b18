"""The documentation: every page is in the navigation, the site builds without warnings, and what can be run is run.

`documented.py` says how a fenced block is marked and how it is shortened. Tutorials are scripts and run as they are.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented import (
    DOCS,
    PAGES,
    REPLACED,
    ROOT,
    TUTORIALS,
    Block,
    blocks,
    check_line,
    fill_placeholders,
    inline_commands,
    read_page,
    run_line,
)
from recombine.cli import main
from recombine.cli.main import VERBS, installed_verbs
from recombine.cli.main import run as run_verb


class ParsedError(Exception):
    """A command was read without a mistake, and is not run."""


@pytest.fixture
def parse_only(monkeypatch):
    """Stop every verb as soon as its flags are read."""
    read = main._read_flags

    def stop(*arguments, **options):
        found = read(*arguments, **options)
        if options.get("partial"):  # the first of two readings
            return found
        raise ParsedError

    monkeypatch.setattr(main, "_read_flags", stop)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder like a clone, as far as commands of the documentation read from it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse_line(line: str) -> None:
    words = fill_placeholders(shlex.split(line, comments=True))
    if "recombine" not in words:
        check_line(line)
        return
    if "x_transformer.py" in line and importlib.util.find_spec("x_transformers") is None:
        return  # its file cannot be read without the package
    arguments = words[words.index("recombine") + 1 :]
    if "--help" in arguments:
        assert run_verb(arguments) == 0, line
        return
    with pytest.raises(ParsedError):
        assert run_verb(arguments) == 0, line


def run_page(page: Path, folder: Path, capsys, *, slow: bool) -> None:
    """Run the blocks of a page in their order, in one folder and one scope."""
    prepare_page(page, folder)
    scope: dict[str, object] = {}
    for block in blocks(page):
        if not block.is_run or (block.is_slow and not slow):
            continue
        if block.language == "python":
            run_snippet(block, folder, scope)
        else:
            run_commands(block, folder, capsys)


def prepare_page(page: Path, folder: Path) -> None:
    """What a page supposes that its reader has."""
    if page.name == "hugging_face.md":
        pytest.importorskip("transformers")
        from huggingface_models import build_model, make_tokenizer

        build_model("llama", "sdpa").save_pretrained(folder / "models" / "mine")
        make_tokenizer().save_pretrained(folder / "models" / "mine")
    if page.name == "leaderboard.md":
        pytest.importorskip("x_transformers")


def run_snippet(block: Block, folder: Path, scope: dict[str, object]) -> None:
    code = block.code
    for long, short in REPLACED.items():
        code = code.replace(long, short)
    if name := re.match(r"# (\w+\.py)\n", code):
        (folder / name[1]).write_text(code)
    exec(compile(code, str(block.page), "exec"), scope)  # noqa: S102


def run_commands(block: Block, folder: Path, capsys) -> None:
    for command, printed in block.commands():
        if printed:
            code = run_verb(shlex.split(command)[1:])
            shown = capsys.readouterr()
            assert without_numbers(shown.err if code else shown.out) == without_numbers(printed)
        else:
            assert run_line(command, folder) == 0, f"{command}\n{capsys.readouterr().err}"


def without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]+", "0", " ".join(text.split()))


def pages_with(*, slow: bool) -> list:
    chosen = [page for page in PAGES if any(block.is_run and block.is_slow == slow for block in blocks(page))]
    return [pytest.param(page, id=page.stem) for page in chosen]


def load_hooks():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    yaml = pytest.importorskip("yaml")
    hooks = load_hooks()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | {
        f"tutorials/{script.stem}.md" for script in TUTORIALS
    }
    nav = hooks.tidy_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"], pages)
    assert pages - hooks.list_named(nav) == set()
    assert hooks.tidy_nav(["gone.md", {"Here": ["a.md"]}], {"a.md"}) == [{"Here": ["a.md"]}]


def test_marks_of_blocks_are_not_shown():
    hooks = load_hooks()
    page = "```console not run: it needs a cluster\na\n```\n\n```python test slow\nb\n```\n\n```text\nc\n```\n"
    assert hooks.on_page_markdown(page) == "```console\na\n```\n\n```python\nb\n```\n\n```text\nc\n```\n"


def test_tutorials_keep_their_headings():
    for script in TUTORIALS:
        assert re.match(r"# \w", load_hooks().convert(script.read_text())), script


def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    # not quiet, which would hide the warnings that strict counts
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tutorials" / "test_your_model" / "index.html").exists()
    assert not list((tmp_path / "site").rglob("*.py"))


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_tutorials_run(script, capsys, tmp_path):
    (tmp_path / script.name).write_text(
        re.sub(r"^STEPS = [\d_]+", "STEPS = 60", script.read_text(), flags=re.MULTILINE)
    )
    runpy.run_path(str(tmp_path / script.name))
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_is_run_or_says_why_not(page):
    assert [block for block in blocks(page) if not block.is_marked] == []
    assert read_page(page).count("\n```") + read_page(page).startswith("```") == 2 * len(blocks(page))


@pytest.mark.parametrize("page", pages_with(slow=False))
def test_blocks_of_a_page_run(page, folder, capsys):
    run_page(page, folder, capsys, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with(slow=True))
def test_long_blocks_of_a_page_run(page, folder, capsys):
    run_page(page, folder, capsys, slow=True)


def test_commands_that_are_not_run_are_right(parse_only, folder, capsys):
    left = [block for page in PAGES for block in blocks(page) if not block.is_run or block.is_slow]
    lines = [line for block in left if block.language == "console" for line, _ in block.commands()]
    lines += [command for page in PAGES for command in inline_commands(page)]
    assert len(lines) > 80
    wrong = []
    for line in dict.fromkeys(lines):
        try:
            parse_line(line)
        except (AssertionError, pytest.fail.Exception):
            wrong.append((line, capsys.readouterr().err))
    assert wrong == []
    for block in left:
        if block.language == "python":
            compile(block.code, str(block.page), "exec")


def test_every_verb_named_in_the_documentation_exists():
    for page in PAGES:
        named = set(re.findall(r"`recombine ([a-z][a-z-]*)", page.read_text()))
        named |= set(re.findall(r"^recombine ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
        assert named <= {*VERBS, *installed_verbs()}, page


def test_every_file_named_in_the_documentation_exists():
    for page in PAGES:
        named = re.findall(r"\b(?:tests|examples|docs|packaging|benchmarks)/[\w/]+\.(?:py|md|json)\b", page.read_text())
        assert [name for name in named if not (ROOT / name).exists()] == [], page
