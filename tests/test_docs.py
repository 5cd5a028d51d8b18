"""The documentation: every page is in the navigation, the site builds without warnings, and what can be run is run.

A fenced block whose first line ends in `test` is executed: `python test` in this process, `console test` line by line as
commands, with training shortened. Tutorials are scripts and run as they are.
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

from recombine.cli import VERBS
from recombine.cli import run as run_verb

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
SHORT = {"train": ["--steps", "20", "--evaluation-instances", "100"]}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language} test\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


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


def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"), "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tutorials" / "test_your_model" / "index.html").exists()
    assert not list((tmp_path / "site").rglob("*.py"))


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_tutorials_run(script, capsys):
    runpy.run_path(str(script))
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.stem)
def test_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in [line for block in blocks(page, "console") for line in block.splitlines()]:
        program, verb, *flags = shlex.split(line, comments=True)
        assert program == "recombine"
        assert run_verb([verb, *flags, *SHORT.get(verb, [])]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block.replace("steps=3_000", "steps=20"), str(page), "exec"), scope)  # noqa: S102


def test_every_verb_named_in_the_documentation_exists():
    for page in PAGES:
        named = set(re.findall(r"`recombine ([a-z]+)", page.read_text()))
        named |= set(re.findall(r"^recombine ([a-z]+)", page.read_text(), re.MULTILINE))
        assert named <= set(VERBS), page
