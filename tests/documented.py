"""The fenced blocks and the commands of the documentation, and how the tests run them.

What stands after the language of a block says what happens to it:

    ```console test              every line is run, shortened (SHORTER), in a folder of the page's own
    ```python test               executed, shortened (REPLACED); `# NAME.py` in its first line: written to that file
    ```console test slow         the same, in the slow tests; until then its commands are only parsed
    ```console not run: REASON   its commands are only parsed
    ```python not run: REASON    it is only compiled
    ```text                      output, a drawing or a listing: no commands

A line `$ COMMAND` in a block is followed by what it prints. Numbers may differ from machine to machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recombine.cli.main import run as run_verb

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md"), *TUTORIALS])

SHORTER = {
    "train": ["--scale", "tiny", "--steps", "20", "--evaluation-instances", "100"],
    "reproduce": ["--scale", "tiny", "--steps", "10", "--seeds", "0"],
    "probe": ["--num-instances", "200", "--no-tsne"],
    "probe-model": ["--num-instances", "200", "--no-tsne"],
    "check": ["--num-instances", "64"],
    "export": ["--num-instances", "40"],
    "bench": ["--seconds", "0.02"],
}
ALONE = {"list", "claims"}  # forms of `reproduce` that train nothing
REPLACED = {
    "steps=3_000": "steps=20",
    'attention=("softmax", "linear", "hyla")': 'attention=("hyla",), steps=(4,)',
    "seeds=range(3)": "seeds=range(1)",
}
PLACEHOLDERS = {
    "SUPPORT": "disconnected",
    "TEACHER": "ssm",
    "TASK": "fuzzy-logic",
    "...": "fuzzy-logic",
    "FILE": "file.parquet",
    "FILE.py": "file.py",
    "NAME": "demo",
    "DIR": "runs",
    "FOLDER": "folder",
    "RUN": "runs/run",
    "RUN...": "runs/run",
    "TEXT": "text",
    "MODEL": "mlp",
    "A": "hyla",
    "N": "4",
    "S": "0",
    "P": "float32",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    mark: str
    code: str

    @property
    def is_run(self) -> bool:
        return self.mark in ("test", "test slow")

    @property
    def is_slow(self) -> bool:
        return self.mark == "test slow"

    @property
    def is_marked(self) -> bool:
        """Whether the block is run, says why not, or is text without commands."""
        if self.language in ("console", "python"):
            return self.is_run or bool(re.fullmatch(r"not run: \w.{10,}", self.mark))
        commands = re.search(r"^(\$ )?(recombine|python|make|torchrun|pip) [a-z]", self.code, re.MULTILINE)
        return self.language == "text" and not self.mark and commands is None

    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands of a block with what each prints; empty if the block does not show it."""
        joined = self.code.replace("\\\n", " ")
        if not joined.startswith("$ "):
            yield from ((line, "") for line in joined.splitlines() if line.split("#")[0].strip())
            return
        for session in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
            command, _, printed = session.partition("\n")
            yield command, printed


def read_page(page: Path) -> str:
    """The text of a page; of a tutorial, its cells of text."""
    text = page.read_text()
    if page.suffix == ".py":
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines() if line.startswith("#"))
    return text


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*) *([^\n]*)\n(.*?)^```$", read_page(page), re.MULTILINE | re.DOTALL)
    return [Block(page, *parts) for parts in found]


def inline_commands(page: Path) -> list[str]:
    """The commands with arguments in the running text."""
    text = re.sub(r"^```.*?^```$", "", read_page(page), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(found.split()) for found in re.findall(r"`(recombine [a-z-]+ [^`]+)`", text)]


def fill_placeholders(words: list[str]) -> list[str]:
    """A command with values for what stands for something: RUN, TASK and the like."""
    return [PLACEHOLDERS.get(word, word) for word in words]


def shorten(verb: str, flags: list[str]) -> list[str]:
    """The flags of a verb with those that make it short, in the place of its own."""
    shorter = SHORTER.get(verb, [])
    if verb == "reproduce" and flags[0] in ALONE:
        return flags
    names = {flag for flag in shorter if flag.startswith("--")} - {"--no-tsne"}  # those that a value follows
    kept, skip = [], False
    for flag in flags:
        if not skip and flag not in names:
            kept.append(flag)
        skip = not skip and flag in names
    return [*kept, *shorter]


def run_line(line: str, folder: Path) -> int:
    """Run one command of a page in `folder`, which is the working directory; returns its exit code."""
    words = shlex.split(line, comments=True)
    runs = sorted((folder / "runs").glob("**/config.json"), key=lambda path: path.stat().st_mtime)
    newest = [str(path.parent.relative_to(folder)) for path in runs]
    if newest:
        words = [part for word in words for part in {"RUN": newest[-1:], "RUN...": newest}.get(word, [word])]
    program, *rest = fill_placeholders(words)
    if program == "recombine":
        return run_verb([rest[0], *shorten(rest[0], rest[1:])])
    if program == "python":
        return subprocess.run([sys.executable, *rest], cwd=folder, env=os.environ | _source()).returncode
    check_line(line)
    return 0


def check_line(line: str) -> None:
    """Require what a command names to exist, for commands that no test should run."""
    program, *rest = shlex.split(line, comments=True)
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"recombine\[([\w,]+)\]", line)
        assert {extra for part in named for extra in part.split(",")} <= set(extras), line
    elif program in ("pytest", "python"):
        assert all((ROOT / word).exists() for word in rest if word.endswith(".py")), line
    else:
        assert program in ("lm_eval", "torchrun"), line


def _source() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src")}
