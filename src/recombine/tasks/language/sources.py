"""Where text comes from: files and folders of plain text, JSON lines and Parquet, also compressed with gzip or Zstandard.

Each file of plain text is a document (a long one is divided into several); each line of a JSON-lines file and each row of a
Parquet file is one, in its field `text`. A file that cannot be used is reported by name and left out; the others are read.
Without files, the text is the source and documentation of the standard library of the running Python (without its tests),
which every machine has.

Data sets of Hugging Face, read in streaming mode and kept as JSON lines that the rest of the code reads like any text.

`NAME:CONFIG` names a configuration of a data set, such as `allenai/c4:en`; a name may also be a local folder that the
package `datasets` can load. Documents are written in files of `DOCUMENTS_PER_FILE`, each whole or absent, so a download
that was stopped continues after its last whole file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import logging
import os
import stat
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recombine.foundation.errors import InputError, import_extra
from recombine.foundation.files import data_folder, replace_file

PLAIN = (".txt", ".md", ".rst", ".py", ".text")
KINDS = {**dict.fromkeys(PLAIN, "plain"), ".jsonl": "lines", ".ndjson": "lines", ".parquet": "parquet"}
COMPRESSIONS = (".gz", ".zst")
TEXT_FIELD = "text"
MAX_REPLACED = 0.1  # of the characters, in a file that is still text
LONG_FILE = 1 << 20  # characters; a longer file of plain text is divided into documents
PART = 1 << 16  # characters of a document that is part of a long file
UNUSED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Source:
    """A file with its size and time of change, and the name that orders it among the others."""

    path: Path
    name: str
    size: int
    changed: int  # in nanoseconds

    @classmethod
    def of(cls, path: Path, name: str) -> Source:
        """A file as it is now; an OSError if it is something else, such as a pipe, which might never end."""
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "is not a regular file")
        return cls(path, name, status.st_size, status.st_mtime_ns)

    def is_unchanged(self) -> bool:
        """Whether the file still has the size and time that it was found with."""
        try:
            return Source.of(self.path, self.name) == self
        except OSError:
            return False


@dataclass
class Problems:
    """What was wrong with files, one line each."""

    lines: list[str] = field(default_factory=list)

    def add(self, source: Source | Path, what: str) -> None:
        self.lines.append(f"{source.path if isinstance(source, Source) else source}: {what}")


def find_sources(paths: Sequence[str], problems: Problems) -> list[Source]:
    """The files of a corpus, ordered by name; without paths, those of the standard library."""
    if not paths:
        return _standard_library()
    found: dict[Path, Source] = {}
    for given in map(Path, paths):
        try:
            given.stat()
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            what = "does not exist" if missing else f"cannot be read ({error.strerror})"
            raise InputError(f"text {str(given)!r} {what}: expected a file or a folder") from None
        for path, name in _walk(given, problems):
            try:
                found.setdefault(path.resolve(), Source.of(path, name))
            except OSError as error:
                problems.add(path, f"{error.strerror}; left out")
    sources = sorted(found.values(), key=lambda source: source.name)
    if not sources:
        reasons = f" ({'; '.join(problems.lines)})" if problems.lines else ""
        raise InputError(f"there is no text in {', '.join(paths)}{reasons}: expected files that end in {_endings()}")
    return sources


def _walk(given: Path, problems: Problems) -> Iterator[tuple[Path, str]]:
    """The files that a path stands for; a file that is named itself may have any ending and is then plain text."""
    if not given.is_dir():
        yield given, given.name
        return

    def report(error: OSError) -> None:
        problems.add(Path(error.filename), f"{error.strerror}; left out")

    for folder, folders, names in os.walk(given, onerror=report):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if kind_of(path) is not None:
                yield path, path.relative_to(given).as_posix()


def _standard_library() -> list[Source]:
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in UNUSED_FOLDERS]
        for path in (Path(folder, name) for name in names if name.endswith((".py", ".txt", ".rst"))):
            source = Source.of(path, path.relative_to(root).as_posix())
            sources += [source] if source.size else []
    return sorted(sources, key=lambda source: source.name)


def kind_of(path: Path) -> str | None:
    """How a file holds text, by its ending; None for files of other kinds."""
    endings = [ending for ending in path.suffixes if ending not in COMPRESSIONS]
    return KINDS.get(endings[-1]) if endings else None


def _endings() -> str:
    return f"{', '.join(KINDS)}, or one of these with {' or '.join(COMPRESSIONS)}"


def read_documents(source: Source, problems: Problems) -> Iterator[str]:
    """The documents of a file. What cannot be read is reported and left out."""
    readers: dict[str, Callable[[Source, Problems], Iterator[str]]] = {"lines": _read_lines, "parquet": _read_parquet}
    try:
        if source.size == 0:
            problems.add(source, "is empty; left out")
            return
        for text in readers.get(kind_of(source.path) or "plain", _read_plain)(source, problems):
            if text.strip():
                yield text
    except OSError as error:
        problems.add(source, f"{error.strerror or error}; left out")
    except _damages() as error:
        problems.add(source, f"cannot be read ({error}); its rest is left out")


def _damages() -> tuple[type[Exception], ...]:
    """What readers raise if a file is damaged; a damaged Parquet file is a ValueError or an OSError."""
    zstandard: Any = sys.modules.get("zstandard")
    return (EOFError, ValueError, zlib.error, *([zstandard.ZstdError] if zstandard else []))


def _open(source: Source) -> Any:
    if source.path.suffix == ".gz":
        return gzip.open(source.path, "rb")
    if source.path.suffix == ".zst":
        zstandard = import_extra("zstandard", extra="language", user=str(source.path))
        file = open(source.path, "rb")  # noqa: SIM115
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=True)
    return open(source.path, "rb")


def _read_plain(source: Source, problems: Problems) -> Iterator[str]:
    with _open(source) as file:
        text = _decode(file.read(), source, problems)
    if text is None:
        return
    if len(text) <= LONG_FILE:
        yield text
        return
    longest = max(map(len, text.split("\n")))
    if longest > PART:
        problems.add(source, f"has a line of {longest:,} characters; it is cut after every {PART:,}")
    yield from divide(text)


def _decode(content: bytes, source: Source, problems: Problems) -> str | None:
    """The text of a file; None if most of it is not text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", errors="replace")
    replaced = text.count("\ufffd")
    if "\0" in text or replaced > MAX_REPLACED * len(text):
        problems.add(source, "is not UTF-8 text; left out")
        return None
    problems.add(source, f"has {replaced} characters that are not UTF-8; they are read as U+FFFD")
    return text


def _read_lines(source: Source, problems: Problems) -> Iterator[str]:
    bad: list[int] = []
    with _open(source) as file:
        for number, line in enumerate(io.BufferedReader(file), start=1):
            if not line.strip():
                continue
            try:
                value: Any = json.loads(line)
                text = value[TEXT_FIELD]
                if not isinstance(text, str):
                    raise TypeError
                text.encode()  # a lone surrogate is valid JSON, but not text
                yield text
            except (ValueError, KeyError, TypeError, RecursionError):
                bad.append(number)
    if bad:
        are = "line is not a JSON object" if len(bad) == 1 else "lines are not JSON objects"
        problems.add(source, f"{len(bad)} {are} with a field {TEXT_FIELD!r}, the first is line {bad[0]}; left out")


def _read_parquet(source: Source, problems: Problems) -> Iterator[str]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(source.path)
    if TEXT_FIELD not in file.schema_arrow.names:
        names = ", ".join(file.schema_arrow.names)
        problems.add(source, f"has no column {TEXT_FIELD!r} (its columns: {names}); left out")
        return
    for group in file.iter_batches(columns=[TEXT_FIELD]):
        yield from (text for text in group.column(0).to_pylist() if isinstance(text, str))


def divide(text: str) -> Iterator[str]:
    """Parts of a text of at most `PART` characters, cut at the end of a line where there is one."""
    start = 0
    while len(text) - start > PART:
        end = text.rfind("\n", start, start + PART) + 1
        end = end if end > start else start + PART
        yield text[start:end]
        start = end
    yield text[start:]


DOCUMENTS_PER_FILE = 10_000

_log = logging.getLogger(__name__)


def download_dataset(name: str, num_documents: int | None) -> Path:
    """The folder with the documents of a data set, downloaded where they are missing."""
    key = hashlib.sha256(f"{name} {num_documents}{_describe_files(name)}".encode()).hexdigest()[:16]
    folder = data_folder("language", "datasets", key)
    if (folder / "complete").exists():
        return folder
    first = len(list(folder.glob("*.jsonl.gz")))
    documents = iter(_open_of_hub(name).skip(first * DOCUMENTS_PER_FILE))
    for number in itertools.count(first):
        room = DOCUMENTS_PER_FILE if num_documents is None else num_documents - number * DOCUMENTS_PER_FILE
        try:
            rows = list(itertools.islice(documents, max(0, min(room, DOCUMENTS_PER_FILE))))
        except Exception as error:  # of many kinds, as in `_open`
            raise InputError(
                f"dataset {name!r} cannot be read after {number * DOCUMENTS_PER_FILE} documents ({_reason(error)}): "
                "expected a connection that lasts; the same command goes on from there"
            ) from None
        texts = [_text_of(row, name) for row in rows]
        if texts:
            lines = "".join(json.dumps({TEXT_FIELD: text}) + "\n" for text in texts)
            replace_file(folder / f"{number:06d}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
            _log.info("%s: %d documents", name, number * DOCUMENTS_PER_FILE + len(texts))
        if len(texts) < DOCUMENTS_PER_FILE:
            break
    replace_file(folder / "complete", name.encode())
    return folder


def _open_of_hub(name: str) -> Any:
    datasets = import_extra("datasets", extra="language", user=f"dataset {name!r}")
    path, _, config = (name, "", "") if Path(name).is_dir() else name.partition(":")
    try:
        return datasets.load_dataset(path, config or None, split="train", streaming=True, **_forbid_code(datasets))
    except Exception as error:  # of many kinds: no network, no such data set, no such configuration
        raise InputError(
            f"dataset {name!r} cannot be loaded ({_reason(error)}): expected the name of a data set with a split 'train'"
        ) from None


def _forbid_code(datasets: Any) -> dict[str, bool]:
    """Flags that keep a data set from running code of its own; since version 4 it cannot, and the flag is gone."""
    return {"trust_remote_code": False} if int(datasets.__version__.partition(".")[0]) < 4 else {}


def _reason(error: Exception) -> str:
    """The first line of an error."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _describe_files(name: str) -> str:
    """The files of a data set in a local folder with their sizes and times, so that another version of it is read again."""
    folder = Path(name)
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return json.dumps([[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def _text_of(row: Any, name: str) -> str:
    if not isinstance(row.get(TEXT_FIELD), str):
        raise InputError(
            f"dataset {name!r} has no text in {TEXT_FIELD!r}: expected such a column (its columns: {', '.join(row)})"
        )
    return str(row[TEXT_FIELD])
