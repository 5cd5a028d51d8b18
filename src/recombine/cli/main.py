"""The command line: one file per verb in `commands/`, imported only when it is called.

Results go to standard output, progress and errors to standard error. Invalid input produces one line and exit code 2.

The help of a verb, in the order in which people need it: examples, what to run, how long, where, and output last.

tyro knows every flag with its type and default and prints them in frames. `read_frames` takes them out of that text;
`write_page` sorts them, removes what says nothing (`{None}|INT`, `default: None`) and prints them at the terminal's width.

Errors of the parser of flags (tyro) as one line in the words of this package.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import io
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recombine.foundation import progress
from recombine.foundation.errors import InputError, check_choice, spell_out

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

WIDTH = 80  # at which tyro prints the frames that are read here
OUTPUT = ("--json", "--quiet", "--verbose", "--help")
WHERE = (
    *("--code", "--out", "--image", "--report", "--figures", "--charts", "--device"),
    *("--engine", "--jobs", "--threads", "--gpus", "--address", "--partition", "--time-limit", "--answer-within"),
    *("--compile", "--deterministic", "--shard", "--track"),
)
TITLES = {
    "positional arguments": "Arguments",
    "options": "What to run",
    "options options": "What to run",
    "training options": "Training",
    "task options": "Task",
    "model options": "Model",
}
COLUMN = 26  # where descriptions start


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A flag or an argument with its description."""

    call: str
    text: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"--[\w-]+", self.call)


def write_page(printed: str, *, examples: Sequence[str], width: int) -> str:
    """The page for what tyro prints for `--help`."""
    head, frames = printed.split("╭─", 1)[0], list(read_frames(printed))
    usage, _, description = head.strip().partition("\n\n")
    usage = re.sub(r" \[(-[^\]]*|OPTIONS)\]", "", " ".join(usage.split()))
    parts = [
        f"{_tidy_call(usage, keep_brackets=True)} [flags]",
        *([textwrap.fill(" ".join(description.split()), width)] if description else []),
    ]
    if examples:
        parts.append("\n".join(["Examples", *(f"  {example}" for example in examples)]))
    trains = any(title == "training options" for title, _ in frames)
    for title, entries in sort_entries(frames).items():
        if entries:
            parts.append(_write_group("Options" if title == "What to run" and not trains else title, entries, width))
    return "\n\n".join(parts)


def sort_entries(frames: Sequence[tuple[str, list[Entry]]]) -> dict[str, list[Entry]]:
    """The entries by title: arguments, what to run, training, task, model, where to, output."""
    groups: dict[str, list[Entry]] = {title: [] for title in dict.fromkeys(TITLES.values())}
    where, output = [], []
    for title, entries in frames:
        for entry in entries:
            if any(name in OUTPUT for name in entry.names):
                output.append(entry)
            elif title.startswith("options") and any(name in WHERE for name in entry.names):
                where.append(entry)
            else:
                groups.setdefault(TITLES.get(title, title), []).append(entry)
    where.sort(key=lambda entry: min(WHERE.index(name) for name in entry.names if name in WHERE))
    output.sort(key=lambda entry: OUTPUT.index(entry.names[-1]))
    return groups | {"Where and how": where, "Output": output}


def read_frames(printed: str) -> Iterator[tuple[str, list[Entry]]]:
    """The title and the entries of every frame."""
    for frame in re.findall(r"╭─.*?╰─*╯", printed, re.DOTALL):
        title, *lines = frame.splitlines()[:-1]
        rows = [line.strip("│")[1:].rstrip() for line in lines]
        rule = next((number for number, row in enumerate(rows) if row and not row.strip("─")), -1)
        yield title.strip("╭╮─ "), list(_read_entries(rows[rule + 1 :]))


def _read_entries(rows: Sequence[str]) -> Iterator[Entry]:
    call, text = "", ""
    for row in rows:
        if row.startswith(" "):
            text = f"{text} {row.strip()}"
        elif row.startswith("-") or text or not call:  # the next entry; otherwise a long list of choices goes on
            if call:
                yield _tidy(call, text)
            call, _, text = row.partition("  ")
        else:
            call += row
    if call:
        yield _tidy(call, text)


def _tidy(call: str, text: str) -> Entry:
    text = " ".join(text.split())
    text = re.sub(r" ?\((default: (None|False|''|)|required|repeatable)\)$", "", text)
    text = text.replace("(default: True)", "(default: on)")
    return Entry(call=_tidy_call(call), text=text.replace("show this help message and exit", "Print this page."))


def _tidy_call(call: str, *, keep_brackets: bool = False) -> str:
    call = re.sub(r"\{None\}\|", "", call).replace("{None,", "{")
    call = re.sub(r"\[*([A-Z.]+) \[\1 \.\.\.\]\]*", r"\1 ...", call)
    call = re.sub(r"^(-[\w-]+) ([^,]+), (--[\w-]+) \2$", r"\1, \3 \2", call)  # the value of two names once
    return call if keep_brackets else re.sub(r"\[([A-Z]+(?: \.\.\.)?)\]", r"\1", call)


def _write_group(title: str, entries: Sequence[Entry], width: int) -> str:
    lines = [title]
    for entry in entries:
        text = textwrap.wrap(entry.text, max(width - COLUMN, 30), break_on_hyphens=False)
        call = textwrap.wrap(entry.call.replace(",", ", ") if len(entry.call) > width - 2 else entry.call, width - 2)
        fits = len(call) == 1 and len(call[0]) + 4 <= COLUMN
        lines += [f"  {call[0]}".ljust(COLUMN) + text.pop(0)] if fits and text else [f"  {line}" for line in call]
        lines += [" " * COLUMN + line for line in text]
    return "\n".join(lines)


NUMBERS = {
    "invalid literal for int() with base 10: ": "a whole number",
    "could not convert string to float: ": "a number",
}


def explain_usage(box: str) -> str:
    """The first message in the frame that tyro draws around its errors, and its suggestion if there is one."""
    paragraphs: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]:  # in a terminal, the frame is coloured
        text = line.strip("│|+╭╰╮╯ ")
        if text.strip("─-"):
            paragraphs[-1].append(text)
        elif paragraphs[-1]:
            paragraphs.append([])
    message = re.sub(r"^Error parsing (?!--)[\w.-]+: ", "", " ".join(paragraphs[0])).removesuffix(".")
    suggestions = [paragraph for paragraph in paragraphs if paragraph and paragraph[0].startswith("Perhaps you meant")]
    lines = [line for paragraph in suggestions for line in paragraph]
    flags = [found[1] for line in lines if (found := re.match(r"(?:-\w, )?(--[\w-]+)", line))]
    return _rephrase(message) + (f" (did you mean {' or '.join(flags)}?)" if flags else "")


def _rephrase(message: str) -> str:
    """A message of tyro as expected and actual."""
    if found := re.match(r"Missing from [\w -]+: (\S+) (.*?)\.? \(required\)$", message):
        return f"{found[1]} is missing: expected {found[2][:1].lower()}{found[2][1:]}"
    if found := re.match(r"Unrecognized options: (.*)$", message):
        return _name_unknown(found[1].split(", "))
    if found := re.match(r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of \((.*)\)$", message):
        return _list_choices(found[2], found[1], re.findall(r"'(.*?)'", found[3]))
    if found := re.match(r"Missing value for argument '(?:\(')?(.*?)'", message):  # with ( in tyro 1.0
        return f"{found[1]} has no value: expected one after it"
    for reason, expected in NUMBERS.items():
        if found := re.match(rf"Error parsing (--[\w-]+): {re.escape(reason)}(.*)$", message):
            return f"{found[1]} is {found[2]}: expected {expected}"
    return message


def _name_unknown(words: list[str]) -> str:
    """What was given and belongs to no flag; the values of unknown flags are not repeated."""
    flags = [word for word in words if word.startswith("-")]
    if flags:
        return f"unknown flag{'s' * (len(flags) > 1)} {', '.join(flags)}"
    return f"unexpected argument{'s' * (len(words) > 1)} {', '.join(map(repr, words))}"


def _list_choices(flag: str, given: str, choices: list[str]) -> str:
    if "None" in choices:  # a flag that need not be given; its choices then come in no particular order
        choices = sorted(set(choices) - {"None"})
    close = difflib.get_close_matches(given, choices, n=1)
    return f"{flag} is {given!r}: expected one of {', '.join(choices)}" + (
        f"; did you mean {close[0]}?" if close else ""
    )


VERBS = {
    "tasks": "list the task families",
    "show": "print an instance of a task",
    "check": "print the certificate of a split, and its chance and ceiling",
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
    "reproduce": "run a named experiment and print it next to the paper's figures",
    "sweep": "train many runs from a Python file, on this machine, Ray or SLURM",
    "report": "write an HTML report about runs",
    "bench": "measure how fast this machine trains, compared with the plain definition",
}

QUESTION = "Does a network recombine what it learned into compositions it has never seen?"
RESUMABLE = ("train", "reproduce", "sweep")
OUT_OF_MEMORY = re.compile(  # torch's allocator; oneDNN; the C++ library; the system; its loader of shared libraries
    r"DefaultCPUAllocator|could not (create|execute) a primitive$|std::bad_alloc|annot allocate memory|"
    r"failed to map segment from shared object$"
)

USAGE = """usage: recombine VERB ...

{question}

{verbs}

recombine VERB --help      examples and flags of a verb
recombine --version        the version"""


class ParsedFlags:
    """Base class of dataclasses that hold the flags of a verb."""

    def is_verbose(self) -> bool:
        """Whether `--verbose` was given."""
        return False

    def shows_progress(self) -> bool:
        """Whether neither `--quiet` nor `--json` was given."""
        return True


Flags = TypeVar("Flags", bound=ParsedFlags)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a verb and exit with its code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII or Latin-1 terminal shows "?" for what it does not have
    code = run(list(sys.argv[1:] if argv is None else argv))
    if not sys.stderr.closed:
        _discard_unwritten(sys.stderr)
    if code == 1 and _is_connected():
        os._exit(code)  # threads of a broken connection can abort an orderly exit
    sys.exit(code)


def _is_connected() -> bool:
    """Whether connections to other processes of a training are open."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def run(argv: list[str]) -> int:
    """Run a verb; returns its exit code."""
    logging.basicConfig(level=logging.ERROR if _is_follower() else logging.WARNING, handlers=[_make_handler()])
    try:
        try:
            _run_verb(argv)
        finally:
            sys.stdout.flush()
    except InputError as error:
        return _complain(error, 2)
    except KeyboardInterrupt as stop:  # a training that was stopped by a signal says where and how to go on
        resumes = "; the same command resumes" if argv[0] in RESUMABLE else ""
        return _complain(str(stop) or f"interrupted{resumes}", getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader of a pipe has left
        sys.stderr.close()
        return 141
    except (MemoryError, OSError, RuntimeError, ImportError) as error:
        if _is_out_of_memory(error):
            return _complain(f"out of memory ({_first_sentence(error) or 'no details'}): expected smaller sizes", 2)
        if isinstance(error, OSError):
            _discard_unwritten(sys.stdout)
            return _complain(_describe(error), 2)
        if type(error).__name__ not in ("DivergedError", "LostProcessError"):  # importing them would import torch
            raise
        return _complain(error, 1, follower=type(error).__name__ == "LostProcessError")
    except SystemExit as stop:  # --help, or a usage message
        return stop.code if isinstance(stop.code, int) else 0
    return 0


class _OneLine(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return spell_out(super().formatMessage(record))


def _make_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("recombine: %(message)s"))
    return handler


def _open_closed_streams() -> None:
    """Streams that are closed (`>&-`) lead nowhere; otherwise the next file that is opened would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _run_verb(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_write_usage(shutil.get_terminal_size().columns))
        raise SystemExit(0 if argv else 2)
    if argv[0] == "--version":
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
    else:
        importlib.import_module(f"recombine.cli.{verb.replace('-', '_')}").run(argv[1:])


def installed_verbs() -> dict[str, EntryPoint]:
    """The verbs of other packages: their entry points in the group `recombine.verbs`, by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="recombine.verbs")}


def describe_verb(entry: EntryPoint) -> str:
    """First line of the docstring of a verb's function, read from the source: importing it may import torch."""
    package, *parts = entry.module.split(".")
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in map(Path, folders):
        for file in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if file.is_file():
                functions = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef))
                text = next((ast.get_docstring(node) for node in functions if node.name == entry.attr), None) or ""
                return spell_out(text.partition("\n")[0].rstrip("."))
    return ""


def _write_usage(width: int) -> str:
    described = VERBS | {name: describe_verb(entry) for name, entry in installed_verbs().items()}
    lines = [
        textwrap.fill(what, max(width, 40), initial_indent=f"  {verb:<13}", subsequent_indent=" " * 15)
        for verb, what in described.items()
    ]
    return USAGE.format(question=textwrap.fill(QUESTION, max(width, 40)), verbs="\n".join(lines))


def _complain(message: object, code: int, *, follower: bool = False) -> int:
    """Print an error; of the processes that torchrun started, the first speaks for all unless `follower`."""
    with contextlib.suppress(OSError):
        if follower or not _is_follower():
            print(f"recombine: {spell_out(str(message))}", file=sys.stderr)
    return code


def _is_follower() -> bool:
    return os.environ.get("RANK", "0") != "0" and "MASTER_ADDR" in os.environ


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, by class or by message: torch on a CPU, oneDNN and the loader have no class of their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return OUT_OF_MEMORY.search(str(error)) is not None


def _first_sentence(error: Exception) -> str:
    return re.sub(r"^\[.*?\] \. ", "", str(error)).partition("\n")[0].split(". ")[0]


def _describe(error: OSError) -> str:
    """Disk full, read-only folder and the like, in one line."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def _discard_unwritten(stream: Any) -> None:
    """Drop what a stream could not take, or Python would try to write it again at exit and fail with a traceback."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def parse(owner: type[Flags], argv: Sequence[str], *, prog: str, **options: Any) -> Flags:
    """Fill a dataclass from flags; what does not fit is an InputError of one line. `options` go to `tyro.cli`."""
    import tyro

    stdout, stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()  # frames depend on the encoding
    asks = bool({"-h", "--help"} & set(argv))
    try:
        with contextlib.redirect_stderr(stderr), _printing_at(WIDTH if asks else None, stdout):
            flags: Flags = tyro.cli(owner, args=list(argv), prog=f"recombine {prog}", **options)
    except SystemExit as error:
        if error.code == 0:  # --help
            stdout.seek(0)
            print(write_page(stdout.read(), examples=examples_of(prog), width=shutil.get_terminal_size().columns))
            raise
        raise InputError(f"{explain_usage(stderr.getvalue())}; see recombine {prog} --help") from None
    if flags.is_verbose():
        logging.getLogger().setLevel(logging.INFO)
    if flags.shows_progress() and not _is_follower():
        progress.turn_on()
    return flags


def examples_of(prog: str) -> tuple[str, ...]:
    """The example commands of a verb, such as `train`, `train fuzzy-logic` or `sweep status`: `EXAMPLES` of its module."""
    name = "sweep_status" if prog == "sweep status" else prog.split()[0].replace("-", "_")
    return getattr(importlib.import_module(f"recombine.cli.{name}"), "EXAMPLES", ())


@contextlib.contextmanager
def _printing_at(width: int | None, stdout: io.TextIOWrapper) -> Iterator[None]:
    """Send standard output to `stdout` and pretend that the terminal has this width, if one is given."""
    if width is None:
        yield
        return
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        with contextlib.redirect_stdout(stdout):
            yield
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def parse_known(owner: type[Flags], argv: Sequence[str], *, prog: str) -> Flags:
    """Like `parse`, but flags that `owner` does not have are ignored, and `--help` is one of them."""
    import tyro

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(owner, args=list(argv), return_unknown_args=True, add_help=False)[0]
    except SystemExit:
        raise InputError(f"{explain_usage(stderr.getvalue())}; see recombine {prog} --help") from None


if __name__ == "__main__":
    main()
