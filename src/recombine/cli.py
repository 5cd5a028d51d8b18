"""The command line: one verb a file in `commands/`, imported only when it is called.

Results go to standard output, progress and errors to standard error. What a user got wrong is one line and exit code 2.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from recombine.errors import InputError, check_choice

if TYPE_CHECKING:
    from recombine.tasks import Task

VERBS = {
    "tasks": "list the task families",
    "show": "print an instance of a task",
    "check": "print a split's certificate, with chance and ceiling of each split",
    "train": "train a model on a task",
    "evaluate": "score a trained run again",
    "probe": "look inside a run: what can be read from it, and what drives it",
    "diagnose": "say whether a run generalises, and if not, why not",
    "export": "write instances of a task to a Parquet file",
    "reproduce": "run a named experiment and print it beside the paper's figures",
    "report": "make one HTML file from runs",
    "bench": "measure how fast this machine trains, beside the plain definition",
}

USAGE = """usage: recombine VERB ...

Does a network recombine what it learned into combinations it has never seen?

{verbs}

recombine VERB --help tells the options of a verb; recombine --version the version."""

Options = TypeVar("Options")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a verb and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {verb:<11}{what}" for verb, what in VERBS.items())))
        return 0 if argv else 2
    if argv[0] == "--version":
        import recombine

        print(f"recombine {recombine.__version__}")
        return 0
    if "-v" in argv or "--verbose" in argv:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        verb = check_choice("verb", argv[0], VERBS)
        importlib.import_module(f"recombine.commands.{verb}").run(argv[1:])
    except InputError as error:
        return _complain(error, 2)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe has left
        sys.stderr.close()
        return 141
    except RuntimeError as error:
        if type(error).__name__ != "DivergedError":  # named, not imported: torch would come with it
            raise
        return _complain(error, 1)
    return 0


def _complain(message: object, code: int) -> int:
    print(f"recombine: {message}", file=sys.stderr)
    return code


def parse(owner: type[Options], argv: Sequence[str], *, prog: str) -> Options:
    """Fill a dataclass from flags; what does not fit is an InputError of one line."""
    import tyro

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(owner, args=list(argv), prog=f"recombine {prog}")
    except SystemExit as error:
        if error.code == 0:  # --help
            raise
        raise InputError(_first_message(stderr.getvalue()) + f"; see recombine {prog} --help") from None


def _first_message(box: str) -> str:
    """The first message in the frame that tyro draws around its errors, below its title."""
    lines: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│|+╭╰╮╯ ")
        is_rule = not text.strip("─-")
        if is_rule and lines:
            break
        if not is_rule:
            lines.append(text)
    return re.sub(r"^Error parsing (?!--)[\w.-]+: ", "", " ".join(lines))


def split_task(argv: Sequence[str], *, prog: str) -> tuple[type[Task], list[str]]:
    """The task family that a command names first, and the flags that follow it."""
    from recombine.tasks import TASKS

    choices = [name.replace("_", "-") for name in TASKS]
    if not argv or argv[0] in ("-h", "--help"):
        print(
            f"usage: recombine {prog} TASK [flags]\n\nTASK is one of {', '.join(choices)}; then --help tells its flags."
        )
        raise SystemExit(0 if argv else 2)
    name = check_choice("task", argv[0].replace("_", "-"), choices)
    return TASKS[name.replace("-", "_")], list(argv[1:])


def parse_task(owner: type[Options], argv: Sequence[str], *, verb: str) -> tuple[Task, Options]:
    """The task that a command names first with its own flags, and the verb's flags, all flat."""
    from dataclasses import make_dataclass

    import tyro

    task_class, flags = split_task(argv, prog=verb)
    flat = tyro.conf.OmitArgPrefixes
    both = make_dataclass("both", [("task", flat[task_class], task_class()), ("verb", flat[owner], owner())])
    options: Any = parse(both, flags, prog=f"{verb} {task_class.name.replace('_', '-')}")
    return options.task, options.verb


if __name__ == "__main__":
    main()
