"""The command line: one file per verb in `commands/`, imported only when it is called.

Results go to standard output, progress and errors to standard error. Invalid input produces one line and exit code 2.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from recombine import progress
from recombine.errors import InputError, check_choice, spell_out
from recombine.help_page import WIDTH, write_page
from recombine.usage_errors import explain_usage

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
    verb = check_choice("verb", argv[0], VERBS)
    if verb != "train" and "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"{verb} was started by torchrun in several processes: expected one; only train shares its work"
        )
    importlib.import_module(f"recombine.commands.{verb.replace('-', '_')}").run(argv[1:])


def _write_usage(width: int) -> str:
    lines = [
        textwrap.fill(what, max(width, 40), initial_indent=f"  {verb:<13}", subsequent_indent=" " * 15)
        for verb, what in VERBS.items()
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
    return getattr(importlib.import_module(f"recombine.commands.{name}"), "EXAMPLES", ())


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
