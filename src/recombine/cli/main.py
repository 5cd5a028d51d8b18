"""The command line: finds the verb, reads its flags, and reports errors in one line.

Each verb is a module of this package, imported when it is called. Its flags are the fields of dataclasses, and the docstrings
below the fields are their help. Results go to standard output, progress and errors to standard error. Invalid input produces
a one-line error and exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import inspect
import io
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from recombine.foundation import display
from recombine.foundation.display import Table, print_table, print_text
from recombine.foundation.errors import InputError, check_choice, escape_controls
from recombine.foundation.plugins import find_entry_points, read_summary

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VERBS = {
    "tasks": "list the task families",
    "show": "print an instance of a task",
    "check": "print the certificate of a split, and its chance and ceiling",
    "certify": "say whether the split of a data set of yours tests recombination",
    "train": "train a model on a task",
    "evaluate": "score a trained run again",
    "probe": "look inside a run: what can be decoded from it, and what its codes do",
    "probe-model": "the same for a pretrained Hugging Face model, on labelled prompts",
    "diagnose": "say whether a run generalises, and if not, why not",
    "generate": "continue a text with a trained language model",
    "export": "write instances of a task to a file",
    "score": "score predictions for exported instances, made by any program",
    "runs": "list the runs in a folder",
    "compare": "print paired differences between two runs",
    "leaderboard": "write an HTML page that ranks runs",
    "sweep": "train many runs from a Python file, on this machine, Ray or SLURM",
    "report": "write an HTML report about runs",
    "bench": "measure how fast this machine trains, compared with the plain definition",
}

OTHER_NAMES = {
    "--lr": "--learning-rate",
    "--epochs": "--steps",
    "--jobs": "--threads",
    "--optim": "--optimizer",
}  # of flags
QUESTION = "Does a network recombine what it learned into compositions it has never seen?"
OUT_OF_MEMORY = re.compile(  # torch's allocator; oneDNN; the C++ library; the system; its loader of shared libraries
    r"DefaultCPUAllocator|could not (create|execute) a primitive$|std::bad_alloc|annot allocate memory|"
    r"failed to map segment from shared object$"
)

USAGE = """usage: recombine VERB ...

{question}

{verbs}

recombine VERB --help      examples and flags of a verb
recombine --version        the version"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a verb and exit with its code."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII or Latin-1 terminal shows "?" for other characters
    limit_spinning()
    code = run(list(sys.argv[1:] if argv is None else argv))
    if not sys.stderr.closed:
        _discard_unwritten(sys.stderr)
    distributed = sys.modules.get("torch.distributed")
    if code == 1 and distributed is not None and distributed.is_available() and distributed.is_initialized():
        os._exit(code)  # threads of a broken connection can abort an orderly exit
    sys.exit(code)


def limit_spinning() -> None:
    """Let threads that wait for work spin for about 0.1 ms before they sleep, unless the user has said how they wait.

    GNU's OpenMP reads this when torch is loaded. Its own default, several milliseconds, takes a processor from whatever else
    runs on the machine, the other threads of the same step among it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def run(argv: list[str]) -> int:
    """Run a verb; returns its exit code."""
    logging.basicConfig(level=logging.ERROR if _is_follower() else logging.WARNING, handlers=[_LineHandler()])
    try:
        try:
            _run_verb(argv)
        finally:
            sys.stdout.flush()
    except InputError as error:
        return _print_error(error, 2)
    except KeyboardInterrupt as stop:  # a training that was stopped by a signal says where and how to go on
        return _print_error(str(stop) or "interrupted; the same command resumes", getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader of a pipe has left
        sys.stderr.close()
        return 141
    except (MemoryError, OSError, RuntimeError, ImportError) as error:
        if _is_out_of_memory(error):
            reason = re.sub(r"^\[.*?\] \. ", "", str(error)).partition("\n")[0].split(". ")[0]
            return _print_error(f"out of memory ({reason or 'no details'}): expected smaller sizes", 2)
        if isinstance(error, OSError):
            _discard_unwritten(sys.stdout)
            reason = error.strerror or str(error) or type(error).__name__  # a full disk, a read-only folder
            return _print_error(f"{error.filename}: {reason}" if error.filename else reason, 2)
        if type(error).__name__ not in ("DivergedError", "LostProcessError"):  # importing them would import torch
            raise
        return _print_error(error, 1, follower=type(error).__name__ == "LostProcessError")
    except SystemExit as stop:  # --help, or a usage message
        return stop.code if isinstance(stop.code, int) else 0
    return 0


class _LineHandler(logging.StreamHandler[Any]):
    def format(self, record: logging.LogRecord) -> str:
        return f"recombine: {escape_controls(record.getMessage())}"


def _run_verb(argv: list[str]) -> None:
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_write_usage(shutil.get_terminal_size().columns))
        raise SystemExit(0 if argv else 2)
    if argv[0] in ("-V", "--version"):
        import recombine

        print(f"recombine {recombine.__version__}")
        return
    verb = argv[0]
    installed = {} if verb in VERBS else installed_verbs()
    check_choice("verb", verb, (*VERBS, *installed))
    if verb != "train" and "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"{verb} was started by torchrun in several processes: expected one; only train shares its work"
        )
    if verb in installed:
        installed[verb].load()(argv[1:])
        return
    words = 2 if argv[:2] == ["sweep", "status"] else 1  # which needs no torch
    importlib.import_module(f"recombine.cli.{'_'.join(argv[:words]).replace('-', '_')}").run(argv[words:])


def installed_verbs() -> dict[str, EntryPoint]:
    """The verbs of other packages, by name."""
    return find_entry_points("recombine.verbs")


def _write_usage(width: int) -> str:
    others = {name: _summarise(name, entry) for name, entry in installed_verbs().items()}
    lines = [
        textwrap.fill(what, max(width, 40), initial_indent=f"  {verb:<13}", subsequent_indent=" " * 15)
        for verb, what in (VERBS | others).items()
    ]
    return USAGE.format(question=textwrap.fill(QUESTION, max(width, 40)), verbs="\n".join(lines))


def _summarise(verb: str, entry: EntryPoint) -> str:
    """What another package's verb does, from a first line such as `recombine VERB FILE: do this.`"""
    start, _, summary = read_summary(entry).partition(": ")
    is_described = start.startswith(f"recombine {verb}") and summary
    return summary.rstrip(".") if is_described else f"from {entry.module.partition('.')[0]}"


def _print_error(message: object, code: int, *, follower: bool = False) -> int:
    """Print an error; of the processes that torchrun started, the first speaks for all unless `follower`."""
    with contextlib.suppress(OSError):
        if follower or not _is_follower():
            print(f"recombine: {escape_controls(str(message))}", file=sys.stderr)
    return code


def _is_follower() -> bool:
    return os.environ.get("RANK", "0") != "0" and "MASTER_ADDR" in os.environ


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, by class or by message: torch on a CPU, oneDNN and the loader have no class of their own."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or OUT_OF_MEMORY.search(str(error)) is not None


def _discard_unwritten(stream: Any) -> None:
    """Drop what could not be written to a stream; Python would try again at exit and fail with a traceback."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass(frozen=True, kw_only=True)
class Argument:
    """Annotation of a field that says how it is written on the command line, beyond its name and type."""

    metavar: str = ""
    alias: str = ""
    positional: bool = False
    repeatable: bool = False


@dataclass(frozen=True, kw_only=True)
class Output:
    """Flags of every verb."""

    examples: ClassVar[tuple[str, ...]] = ()

    json: bool = False
    """Print the result as JSON."""
    quiet: Annotated[bool, Argument(alias="-q")] = False
    """Print only the result."""
    verbose: Annotated[bool, Argument(alias="-v")] = False
    """Write log messages to standard error."""

    @property
    def is_silent(self) -> bool:
        """Whether messages and progress are left out."""
        return self.quiet or self.json

    def select(self, *names: str) -> dict[str, Any]:
        """The values of some flags by name, to be passed on as arguments."""
        return {name: getattr(self, name) for name in names}

    def show(self, value: Mapping[str, Any], *shown: Table | str) -> None:
        """Print a result, as JSON or as tables and text."""
        if self.json:
            print(json.dumps(value, indent=2, ensure_ascii=False))
            return
        for part in shown:
            print_text(part) if isinstance(part, str) else print_table(part)

    def say(self, message: str) -> None:
        """Print a message to standard error, unless the output is silent."""
        if not self.is_silent:
            print(escape_controls(message, keep="\n"), file=sys.stderr)


Options = TypeVar("Options", bound=Output)


def parse(owner: type[Options], argv: Sequence[str], *, prog: str) -> Options:
    """The flags of a verb as a dataclass. Invalid flags raise an `InputError`."""
    groups, text = {"Options": owner}, owner.__doc__ or ""
    (options,) = parse_groups(groups, argv, prog=prog, description=text, examples=owner.examples)
    return options


def parse_groups(
    groups: Mapping[str, Any], argv: Sequence[str], *, prog: str, description: str, examples: Sequence[str]
) -> list[Any]:
    """A dataclass per group of flags. A group is a class, or an instance whose values are the defaults.

    The first group must hold the flags of `Output`.
    """
    known = {title: _list_flags(owner) for title, owner in groups.items()}
    wants_help = bool({"-h", "--help"} & set(argv))
    parser = _build_parser(known, prog, describe_verb(description, examples) if wants_help else None)
    values = _read_flags(parser, [flag for flags in known.values() for flag in flags], argv)
    parsed = []
    for title, owner in groups.items():
        given = {flag.name: values[flag.name] for flag in known[title] if flag.name in values}
        parsed.append(owner(**given) if isinstance(owner, type) else replace(owner, **given))
    options: Output = parsed[0]
    if options.verbose:
        logging.getLogger().setLevel(logging.INFO)
    if not options.is_silent and not _is_follower():
        display.turn_on()
    return parsed


def parse_known(owner: type[Output], argv: Sequence[str], *, prog: str) -> argparse.Namespace:
    """The flags of one class, with their defaults; all other words are ignored."""
    flags = _list_flags(owner)
    given = _read_flags(_build_parser({"": flags}, prog), flags, argv, partial=True)
    return argparse.Namespace(**({flag.name: flag.default for flag in flags} | given))


class Flag(NamedTuple):
    """A field of a dataclass as a flag or, if it is positional, as an argument."""

    name: str
    type: Any
    is_optional: bool
    style: Argument
    default: Any
    owner: type
    is_switch: bool

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple

    @property
    def written(self) -> str:
        return self.metavar if self.style.positional else f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        if self.style.metavar:
            return self.style.metavar
        item = get_args(self.type)[0] if self.is_list else self.type
        if get_origin(item) is Literal and len(choices := ",".join(map(str, get_args(item)))) < 60:
            return f"{{{choices}}}"
        return {int: "INT", float: "FLOAT", Path: "PATH"}.get(item) or self.name.upper().replace("_", "-")

    def describe(self) -> str:
        """The docstring of the field, with its choices and its default."""
        text = _read_docstrings(self.owner).get(self.name, "")
        if get_origin(self.type) is Literal and not self.metavar.startswith("{"):
            text += f" One of {', '.join(map(str, get_args(self.type)))}."
        if self.default in (None, False, (), "", MISSING) or "(default" in text:
            return text
        shown = " ".join(map(str, self.default)) if isinstance(self.default, tuple) else self.default
        return f"{text} (default: {'on' if shown is True else shown})"


def _list_flags(owner: Any) -> list[Flag]:
    """The fields of a dataclass or of an instance."""
    is_class = isinstance(owner, type)
    cls = owner if is_class else type(owner)
    hints = get_type_hints(cls, include_extras=True)
    flags = []
    for field in fields(cls):
        declared, style = hints[field.name], Argument()
        if get_origin(declared) is Annotated:
            declared, *marks = get_args(declared)
            style = next((mark for mark in marks if isinstance(mark, Argument)), style)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        default = default if is_class else getattr(owner, field.name)
        choices = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
        types = [choice for choice in choices if choice is not NoneType]
        single = types[0] if len(types) == 1 else declared
        # a setting of a task that is on by default at one scale must have a flag that turns it off
        is_switch = declared is bool and is_class and default is False
        flags.append(Flag(field.name, single, len(types) < len(choices), style, default, cls, is_switch))
    return flags


def _read_docstrings(owner: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases."""
    texts = {}
    for cls in filter(is_dataclass, reversed(owner.__mro__)):
        with contextlib.suppress(OSError, TypeError, SyntaxError):  # a class without source
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            for field, text in pairwise(tree.body):  # type: ignore[attr-defined]
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                ):
                    texts[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(message)


def _build_parser(groups: Mapping[str, Sequence[Flag]], prog: str, description: str | None = None) -> _Parser:
    """The parser of some flags; without a description, it has no help."""
    flags = [flag for group in groups.values() for flag in group]
    arguments = [f"{flag.metavar}{' ...' * flag.is_list}" for flag in flags if flag.style.positional]
    parser = _Parser(
        prog=f"recombine {prog}",
        usage=" ".join(["%(prog)s", *arguments, "[flags]"]),
        description=description,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26),
        allow_abbrev=False,
        add_help=False,
        exit_on_error=False,
    )
    titled = {title: parser.add_argument_group(title) for title in ("Arguments", *groups, "Output")}
    output = {field.name for field in fields(Output)}
    owners: dict[str, type] = {}
    for title, group in groups.items():
        for flag in group:
            if flag.name in owners:
                raise InputError(
                    f"{flag.owner.__name__} and {owners[flag.name].__name__} both have a setting {flag.name!r}: "
                    "expected different names"
                )
            owners[flag.name] = flag.owner
            place = "Arguments" if flag.style.positional else "Output" if flag.name in output else title
            _add_flag(titled[place], flag, flag.describe().replace("%", "%%") if description else None)
    if description is not None:
        titled["Output"].add_argument("-h", "--help", action="help", help="Print this page.")
    return parser


def _add_flag(group: argparse._ArgumentGroup, flag: Flag, text: str | None) -> None:
    names = [flag.style.alias, flag.written] if flag.style.alias else [flag.written]
    common: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS, "help": text}
    if flag.style.positional:
        group.add_argument(**common, metavar=flag.metavar, nargs="*" if flag.is_list else "?")
    elif flag.type is bool:
        group.add_argument(*names, **common, action="store_true" if flag.is_switch else argparse.BooleanOptionalAction)
    elif flag.style.repeatable:
        group.add_argument(*names, **common, metavar=flag.metavar, action="append")
    elif flag.is_list:
        # given twice, both count
        group.add_argument(*names, **common, metavar=flag.metavar, nargs="*", action="extend")
    else:
        group.add_argument(*names, **common, metavar=flag.metavar)


def _read_flags(
    parser: _Parser, flags: Sequence[Flag], argv: Sequence[str], *, partial: bool = False
) -> dict[str, Any]:
    """The values of the flags that are given. With `partial`, other words are ignored and nothing is required."""
    words = [re.sub(r"^--[\w-]+", lambda found: found[0].replace("_", "-"), word) for word in argv]
    try:
        found, others = parser.parse_known_intermixed_args(words)
        if others and not partial:
            names = [name for action in parser._actions for name in action.option_strings]
            raise InputError(_describe_unknown(others, names))
        given = {flag.name: _convert(getattr(found, flag.name), flag) for flag in flags if hasattr(found, flag.name)}
        missing = next((flag for flag in flags if flag.default is MISSING and flag.name not in given), None)
        if missing is not None and not partial:
            text = missing.describe().rstrip(".")
            raise InputError(f"{missing.written} is missing: expected {text[:1].lower()}{text[1:]}")
    except (argparse.ArgumentError, InputError) as error:
        what = error if isinstance(error, InputError) else f"{error.argument_name}: {error.message}"
        raise InputError(f"{what}; see {parser.prog} --help") from None
    return given


def _describe_unknown(words: Sequence[str], known: Sequence[str]) -> str:
    """The words that belong to no flag; the values of unknown flags are not repeated."""
    unknown = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not unknown:
        return f"unexpected argument{'s' * (len(words) > 1)} {', '.join(map(repr, words))}"
    other = OTHER_NAMES.get(unknown[0])
    close = [other] if other in known else difflib.get_close_matches(unknown[0], known, n=1)
    nearest = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown flag{'s' * (len(unknown) > 1)} {', '.join(unknown)}{nearest}"


def _convert(words: Any, flag: Flag) -> Any:
    if isinstance(words, bool):
        return words
    if flag.is_optional and words == "None":
        return None
    if not flag.is_list:
        return _convert_word(words, flag.type, flag.written)
    types = get_args(flag.type)
    types = types[:1] * len(words) if types[-1] is Ellipsis else types
    if len(types) != len(words):
        raise InputError(f"{flag.written} has {len(words)} values: expected {len(types)}")
    return tuple(_convert_word(word, item, flag.written) for word, item in zip(words, types, strict=True))


def _convert_word(word: str, declared: Any, written: str) -> Any:
    """A word as a value of a type."""
    if get_origin(declared) is Literal:
        choices = {str(choice): choice for choice in get_args(declared)}
        return choices[check_choice(f"value of {written}", word, choices)]
    if get_origin(declared) in (Union, UnionType):
        *others, last = (choice for choice in get_args(declared) if choice is not NoneType)
        for choice in others:
            with contextlib.suppress(InputError):
                return _convert_word(word, choice, written)
        return _convert_word(word, last, written)
    if declared not in (int, float, str, Path):
        raise InputError(f"{written} has the type {declared}: expected a setting that is a number, text or a choice")
    try:
        return declared(word)
    except ValueError:
        if declared is int and re.fullmatch(r"[\d.]+e\d\d?", word, re.IGNORECASE) and float(word).is_integer():
            return int(float(word))
        raise InputError(
            f"{written} is {word!r}: expected {'a whole number' if declared is int else 'a number'}"
        ) from None


def describe_verb(text: str, examples: Sequence[str]) -> str:
    """The description and the examples of a verb, as its help shows them."""
    width = shutil.get_terminal_size().columns
    paragraphs = (textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False) for part in text.split("\n\n"))
    return "\n\n".join([*paragraphs, "\n  ".join(["Examples:", *examples])])


if __name__ == "__main__":
    main()
