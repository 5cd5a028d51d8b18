"""Help: every verb has a page with examples of its own, whose flags exist; and how flags become values."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from recombine.cli.main import VERBS, Argument, Output, parse, parse_groups
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError

TASK_VERBS = ("show", "check", "train", "export", "score")
PAGES = [
    *VERBS,
    "reproduce",
    *(f"{verb} fuzzy-logic" for verb in TASK_VERBS),
    "sweep status",
    "reproduce claims",
    "reproduce list",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_verb_has_a_page_with_examples(page, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_verb([*page.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: recombine {page}")
    examples = re.findall(r"^  (recombine .*)$", shown, re.MULTILINE)
    assert examples
    assert all(example.startswith(f"recombine {page}") for example in examples)
    if page in TASK_VERBS:  # a list of tasks, whose flags are on another page
        return
    for text in ("None", "default: False", "SUPPRESS"):
        assert text not in shown
    flags = re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[\w-]+)", shown, re.MULTILINE)
    assert flags[-4:] == ["--json", "--quiet", "--verbose", "--help"]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("verb", [*VERBS, "reproduce"])
def test_examples_have_flags_that_exist(verb, capsys):
    run_verb([verb, "--help"])
    for example in re.findall(r"^  (recombine .*)$", capsys.readouterr().out, re.MULTILINE):
        words = example.split()[1:]
        about = words[:2] if verb in TASK_VERBS and "/" not in words[1] else words[:1]
        about = ["check", "fuzzy-logic"] if about == ["check"] else about
        run_verb([*about, "--help"])
        page = capsys.readouterr().out
        assert [word for word in words if word.startswith("-") and word not in page] == []


def test_groups_come_in_order(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run_verb(["train", "fuzzy-logic", "--help"])
    page = capsys.readouterr().out
    titles = ("\nExamples:", "\nOptions:", "\nTraining:", "\nTask:", "\nModel:", "\nOutput:")
    assert [page.index(title) for title in titles] == sorted(page.index(title) for title in titles)
    assert "hyla_no_nonlinearity_no_rms_head" in page
    assert max(map(len, page.splitlines())) <= 80


@dataclass(frozen=True, kw_only=True)
class Many(Output):
    """Many types."""

    where: Annotated[Path, Argument(metavar="WHERE", positional=True)]
    """Place."""
    count: int | None = 3
    """Count."""
    names: Annotated[tuple[str, ...], Argument(repeatable=True)] = ()
    """Names."""
    pair: tuple[int, float] = (1, 0.5)
    """Two numbers, 100 %."""
    mode: Literal["slow", "fast"] = "slow"
    """Mode."""
    mixed: int | str = 0
    """A number or a name."""
    keep: bool = True
    """Keep it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A group of its own."""

    is_on: bool = False
    """On."""


def test_flags_become_values():
    line = "here --count None --names a --names b --pair 2 --pair 3 --mixed x --no-keep --mode fast -q"
    many = parse(Many, line.split(), prog="many")
    assert (many.where, many.count, many.names, many.pair) == (Path("here"), None, ("a", "b"), (2, 3.0))
    assert (many.mixed, many.keep, many.mode, many.quiet) == ("x", False, "fast", True)
    assert parse(Many, ["--mixed=5", "here"], prog="many").mixed == 5
    groups = {"Options": Many, "Settings": Settings(is_on=True)}
    for flags, is_on in (([], True), (["--no-is_on"], False)):  # underscores serve too
        assert parse_groups(groups, ["x", *flags], prog="many", description="", examples=())[1].is_on is is_on


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "WHERE is missing: expected place; see recombine many --help"),
        ("x y", "unexpected argument 'y'"),
        ("x --pair 1", "--pair has 1 values: expected 2"),
        ("x --pair 1 y", "--pair is 'y': expected a number"),
        ("x --mode quick", "unknown value of --mode 'quick': expected one of slow, fast"),
        ("x --mode=fats", "did you mean fast?"),
        ("x --cuont=3 --xyzzy", "unknown flags --cuont, --xyzzy (did you mean --count?)"),
    ],
)
def test_words_that_do_not_fit(words, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse(Many, words.split(), prog="many")


def test_two_groups_with_one_name_are_refused():
    with pytest.raises(InputError, match="Settings and Settings both have a setting 'is_on': expected different names"):
        parse_groups({"": Many, "A": Settings(), "B": Settings()}, ["x"], prog="many", description="", examples=())
