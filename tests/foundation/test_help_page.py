"""Help pages: the order people need, two examples each, no noise; and what tyro prints is read completely."""

import re

import pytest

from recombine.cli.main import VERBS, examples_of, write_page
from recombine.cli.main import run as run_verb

TASK_VERBS = ("show", "check", "train", "export", "score")


def help_of(verb: str, capsys, monkeypatch, width: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run_verb([verb, *(["fuzzy-logic"] if verb in TASK_VERBS else []), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_pages_are_in_order_and_without_noise(verb, capsys, monkeypatch):
    page = help_of(verb, capsys, monkeypatch)
    assert len(examples_of(verb)) >= 2
    for example in examples_of(verb):
        assert f"  {example}\n" in page
        assert example.startswith(f"recombine {verb}")
    assert "None" not in page
    assert not re.search(r"default: (False|\))", page)
    assert page.index("\nExamples\n") < page.index("--json")
    flags = re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[\w-]+)", page, re.MULTILINE)
    assert flags[-4:] == ["--json", "--quiet", "--verbose", "--help"]
    assert len(flags) == len(set(flags))


def test_examples_name_flags_that_exist(capsys, monkeypatch):
    for verb in VERBS:
        page = help_of(verb, capsys, monkeypatch)
        flags = {flag for example in examples_of(verb) for flag in re.findall(r" (--[\w-]+|-o)", example)}
        tasks = {example.split()[2] for example in examples_of(verb)} if verb in TASK_VERBS else set()
        for task in (task for task in tasks if "/" not in task):
            run_verb([verb, task, "--help"])
            page += capsys.readouterr().out
        assert {flag for flag in flags if flag not in page} == set(), verb


def test_training_comes_before_sizes_and_folders_after(capsys, monkeypatch):
    page = help_of("train", capsys, monkeypatch)
    places = [
        page.index(f"\n  {flag} ") for flag in ("--scale", "--steps", "--num-terms", "--attention", "--out", "--json")
    ]
    assert places == sorted(places)
    assert "hyla_no_nonlinearity_no_rms_head" in page.replace("\n  ", "")  # a list of choices over several lines


@pytest.mark.parametrize("width", [50, 80, 200])
def test_pages_fit_the_terminal(width, capsys, monkeypatch):
    page = help_of("reproduce", capsys, monkeypatch, width).split("Arguments", 1)[1]
    assert max(map(len, page.splitlines())) <= max(width, 56)
    words = " ".join(page.split())
    assert "Training steps of every run (default: as the experiment says)." in words


def test_reading_a_frame():
    printed = """usage: recombine do [-h] [OPTIONS] [{None}|PATH]

What to do.

╭─ positional arguments ─────╮
│ [{None}|PATH]  Where.      │
╰────────────────────────────╯
╭─ options ──────────────────╮
│ How.                       │
│ ────────────────────────── │
│ --few [INT [INT ...]]      │
│                Numbers.    │
│                (default: ) │
╰────────────────────────────╯
"""
    page = write_page(printed, examples=(), width=80)
    assert page.splitlines()[0] == "usage: recombine do [PATH] [flags]"
    assert "  PATH                    Where." in page
    assert "  --few INT ...           Numbers." in page
