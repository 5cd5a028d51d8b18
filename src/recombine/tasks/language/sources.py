"""Sources of text: files of plain text, JSON lines and Parquet, also compressed (.gz, .zst), and Hugging Face data sets.

A file of plain text is a document (a long one is divided into several); each line of a JSON-lines file and each row of a
Parquet file is one, in its field `text`. A file that cannot be used is reported by name and left out. Without files, the text
is the source and documentation of the standard library of the running Python, without its tests.

A data set is downloaded as JSON lines with `DOCUMENTS_PER_FILE` documents per file. Each file is whole or absent, so an
interrupted download continues after the last one. A name is that of a data set on the hub, with a configuration if it has
several (`allenai/c4:en`), or a local folder that `datasets` can load.
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
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recombine.foundation.errors import InputError, import_extra
from recombine.foundation.files import data_folder, parse_json, replace_file

PLAIN = (".txt", ".md", ".rst", ".py", ".text")
KINDS = {**dict.fromkeys(PLAIN, "plain"), ".jsonl": "lines", ".ndjson": "lines", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
TEXT_FIELD = "text"
MAX_REPLACED = 0.1  # of the characters, in a file that is still text
LONG_FILE = 1 << 20  # characters; a longer file of plain text is divided into documents
PART = 1 << 16  # characters of a document that is part of a long file
UNUSED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
DOCUMENTS_PER_FILE = 10_000

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A file with its size and time of change, and the name that orders it among the others."""

    path: Path
    name: str
    size: int
    changed: int  # in nanoseconds

    @classmethod
    def of(cls, path: Path, name: str) -> Source:
        """A file as it is now; an OSError for anything else, such as a pipe, which might never end."""
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "is not a regular file")
        return cls(path, name, status.st_size, status.st_mtime_ns)


def find_sources(paths: Sequence[str], problems: list[str]) -> list[Source]:
    """The files of a corpus, ordered by name; without paths, those of the standard library."""
    found: dict[Path, Source] = {}
    listed = (_list_files(Path(given), problems) for given in paths) if paths else [_list_standard_library()]
    for path, name in itertools.chain.from_iterable(listed):
        try:
            found.setdefault(path.resolve(), Source.of(path, name))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}; left out")
    if not found:
        reasons = f" ({'; '.join(problems)})" if problems else ""
        endings = f"{', '.join(KINDS)}, or one of these with {' or '.join(COMPRESSIONS)}"
        raise InputError(f"there is no text in {', '.join(paths)}{reasons}: expected files that end in {endings}")
    return sorted(found.values(), key=lambda source: source.name)


def _list_files(given: Path, problems: list[str]) -> Iterator[tuple[Path, str]]:
    """The files in a folder with their names; a file that is given itself may have any ending."""
    try:
        given.stat()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        what = "does not exist" if missing else f"cannot be read ({error.strerror})"
        raise InputError(f"text {str(given)!r} {what}: expected a file or a folder") from None
    if not given.is_dir():
        yield given, given.name
        return

    def report(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}; left out")

    for folder, folders, names in os.walk(given, onerror=report):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            if _kind_of(path) is not None:
                yield path, path.relative_to(given).as_posix()


def _list_standard_library() -> Iterator[tuple[Path, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in UNUSED_FOLDERS]
        for path in (Path(folder, name) for name in names if name.endswith((".py", ".txt", ".rst"))):
            if path.stat().st_size:
                yield path, path.relative_to(root).as_posix()


def _kind_of(path: Path) -> str | None:
    """How a file holds text, by its ending; None for files of other kinds."""
    endings = [ending for ending in path.suffixes if ending not in COMPRESSIONS]
    return KINDS.get(endings[-1]) if endings else None


def read_documents(source: Source, problems: list[str]) -> Iterator[str]:
    """The documents of a file. What cannot be read is reported and left out."""
    import pyarrow

    kind, found = _kind_of(source.path), []
    try:
        with open(source.path, "rb") as raw:
            if source.size == 0:
                found.append("is empty; left out")
            elif kind == "parquet":
                yield from _keep_text(_read_parquet(raw, found))
            else:
                with pyarrow.input_stream(raw, compression=COMPRESSIONS.get(source.path.suffix)) as file:
                    yield from _keep_text((_read_lines if kind == "lines" else _read_plain)(file, found))
    except (OSError, ValueError) as error:  # what pyarrow raises for damaged files, too
        reason = getattr(error, "strerror", None)
        found.append(f"{reason}; left out" if reason else f"cannot be read ({error}); its rest is left out")
    problems += [f"{source.path}: {problem}" for problem in found]


def _keep_text(texts: Iterable[Any]) -> Iterator[str]:
    return (text for text in texts if isinstance(text, str) and text.strip())


def _read_plain(file: Any, problems: list[str]) -> Iterator[str]:
    content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", errors="replace")
        replaced = text.count("\ufffd")
        if "\0" in text or replaced > MAX_REPLACED * len(text):
            problems.append("is not UTF-8 text; left out")
            return
        problems.append(f"has {replaced} characters that are not UTF-8; they are read as U+FFFD")
    if len(text) <= LONG_FILE:
        yield text
        return
    longest = max(map(len, text.split("\n")))
    if longest > PART:
        problems.append(f"has a line of {longest:,} characters; it is cut after every {PART:,}")
    yield from divide(text)


def _read_lines(file: Any, problems: list[str]) -> Iterator[str]:
    bad: list[int] = []
    for number, line in enumerate(io.BufferedReader(file), start=1):
        if not line.strip():
            continue
        try:
            text = parse_json(line, Any, str(number))[TEXT_FIELD]
            text.encode()  # a lone surrogate is valid JSON, but not text
            yield text
        except (ValueError, LookupError, TypeError, AttributeError):
            bad.append(number)
    if bad:
        are = "line is not a JSON object" if len(bad) == 1 else "lines are not JSON objects"
        problems.append(f"{len(bad)} {are} with a field {TEXT_FIELD!r}, the first is line {bad[0]}; left out")


def _read_parquet(file: Any, problems: list[str]) -> Iterator[Any]:
    import pyarrow.parquet

    content = pyarrow.parquet.ParquetFile(file)
    names = content.schema_arrow.names
    if TEXT_FIELD not in names:
        problems.append(f"has no column {TEXT_FIELD!r} (its columns: {', '.join(names)}); left out")
        return
    for group in content.iter_batches(columns=[TEXT_FIELD]):
        yield from group.column(0).to_pylist()


def divide(text: str) -> Iterator[str]:
    """Parts of a text of at most `PART` characters, cut at the end of a line where there is one."""
    start = 0
    while len(text) - start > PART:
        end = text.rfind("\n", start, start + PART) + 1
        end = end if end > start else start + PART
        yield text[start:end]
        start = end
    yield text[start:]


def download_dataset(name: str, num_documents: int | None) -> Path:
    """The folder with the documents of a data set, downloaded where they are missing."""
    key = hashlib.sha256(f"{name} {num_documents}{_describe_files(name)}".encode()).hexdigest()[:16]
    folder = data_folder("language", "datasets", key)
    if (folder / "complete").exists():
        return folder
    datasets = import_extra("datasets", extra="language", user=f"dataset {name!r}")
    path, _, config = (name, "", "") if Path(name).is_dir() else name.partition(":")
    done = len(list(folder.glob("*.jsonl.gz")))
    try:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True).skip(
            done * DOCUMENTS_PER_FILE
        )
        if num_documents is not None:
            rows = rows.take(max(0, num_documents - done * DOCUMENTS_PER_FILE))
        for part in rows.iter(batch_size=DOCUMENTS_PER_FILE):
            if TEXT_FIELD not in part:
                raise ValueError(f"its columns are {', '.join(part)}, without {TEXT_FIELD!r}")
            lines = "".join(json.dumps({TEXT_FIELD: text}) + "\n" for text in part[TEXT_FIELD])
            replace_file(folder / f"{done:06d}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
            done += 1
            _log.info("%s: %d files of %d documents", name, done, DOCUMENTS_PER_FILE)
    except Exception as error:  # of many kinds: no network, no such data set, no such configuration
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"dataset {name!r} cannot be read after {done * DOCUMENTS_PER_FILE} documents ({reason}): expected a data set "
            f"with texts in {TEXT_FIELD!r} of its split 'train', and a connection that lasts; the same command continues"
        ) from None
    replace_file(folder / "complete", name.encode())
    return folder


def _describe_files(name: str) -> str:
    """The files of a local data set with their sizes and times, so that another version of it is read again."""
    folder = Path(name)
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return json.dumps([[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files])
