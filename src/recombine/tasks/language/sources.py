"""Documents of a text: files of plain text, JSON lines and Parquet, also compressed (.gz, .zst), and Hugging Face data sets.

A file of plain text is a document (a long one is divided into several); each line of a JSON-lines file and each row of a
Parquet file is one, in its field `text`. A file that cannot be used is reported by name and left out. Without files, the text
is the source and documentation of the standard library of the running Python, without its tests.

A data set is a name on the hub, with a configuration if it has several (`allenai/c4:en`), or a local folder. `datasets` downloads and
caches it. With a number of documents, it is streamed and only these are cached.
"""

from __future__ import annotations

import io
import logging
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recombine.foundation.display import track
from recombine.foundation.errors import InputError, import_extra
from recombine.foundation.files import parse_json

KINDS = {
    **dict.fromkeys((".txt", ".md", ".rst", ".py", ".text"), "plain"),
    **dict.fromkeys((".jsonl", ".ndjson"), "lines"),
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".zst")
TEXT_FIELD = "text"
MAX_REPLACED = 0.1  # of the characters, in a file that is still text
LONG_FILE = 1 << 20  # characters; a longer file of plain text is divided into documents
PART = 1 << 16  # characters of a document that is part of a long file
UNUSED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A file with its size and time of change, and the name that orders it among the others."""

    path: Path
    name: str
    size: int
    changed: int  # in nanoseconds


def find_sources(paths: Sequence[str], problems: list[str]) -> list[Source]:
    """The files of a text, ordered by name; without paths, those of the standard library."""
    found = []
    for given in map(Path, paths):
        if given.is_dir():
            found += [source for source in list_files(given, problems) if _kind_of(source.path) is not None]
        elif given.is_file():  # of any ending
            status = given.stat()
            found.append(Source(given, given.name, status.st_size, status.st_mtime_ns))
        else:
            raise InputError(f"text {str(given)!r} does not exist: expected a file or a folder")
    if not paths:
        library = Path(sysconfig.get_paths()["stdlib"])
        listed = list_files(library, problems, UNUSED_FOLDERS)
        found = [source for source in listed if source.path.suffix in (".py", ".txt", ".rst") and source.size]
    if not found:
        endings = f"{', '.join(KINDS)}, or one of these with {' or '.join(COMPRESSIONS)}"
        raise InputError(f"there is no text in {', '.join(paths)}: expected files that end in {endings}")
    return sorted(found, key=lambda source: source.name)


def list_files(root: Path, problems: list[str], unused: set[str] | None = None) -> Iterator[Source]:
    """All regular files in a folder, named relative to it."""

    def report(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}; left out")

    for folder, folders, names in os.walk(root, onerror=report):
        folders[:] = sorted(set(folders) - (unused or set()))
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file():
                status = path.stat()
                yield Source(path, path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns)


def _kind_of(path: Path) -> str | None:
    """How a file holds text, by its ending; None for files of other kinds."""
    return KINDS.get((path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix)


def read_documents(path: Path, problems: list[str]) -> Iterator[str]:
    """The documents of a file. What cannot be read is reported and left out."""
    import pyarrow

    read = {"lines": _read_lines, "parquet": _read_parquet}.get(_kind_of(path) or "", _read_plain)
    try:
        with open(path, "rb") as raw:
            compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
            file = raw if compression is None else pyarrow.input_stream(raw, compression=compression)
            yield from (text for text in read(file, path, problems) if isinstance(text, str) and text.strip())
    except (OSError, ValueError) as error:  # what pyarrow raises for damaged files, too
        problems.append(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); its rest is left out")


def _read_plain(file: Any, path: Path, problems: list[str]) -> Iterator[str]:
    content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", errors="replace")
        replaced = text.count("\ufffd")
        if "\0" in text or replaced > MAX_REPLACED * len(text):
            problems.append(f"{path}: is not UTF-8 text; left out")
            return
        problems.append(f"{path}: has {replaced} characters that are not UTF-8; they are read as U+FFFD")
    yield from divide(text) if len(text) > LONG_FILE else [text]


def _read_lines(file: Any, path: Path, problems: list[str]) -> Iterator[str]:
    bad: list[int] = []
    for number, line in enumerate(io.BufferedReader(file), start=1):
        try:
            if line.strip():
                text = parse_json(line, Any, str(number))[TEXT_FIELD]
                text.encode()  # a lone surrogate is valid JSON, but not text
                yield text
        except (ValueError, LookupError, TypeError, AttributeError):
            bad.append(number)
    if bad:
        problems.append(
            f"{path}: {len(bad)} lines without a JSON object with a field {TEXT_FIELD!r}, the first is line {bad[0]}; left out"
        )


def _read_parquet(file: Any, path: Path, problems: list[str]) -> Iterator[Any]:
    import pyarrow.parquet

    content = pyarrow.parquet.ParquetFile(file)
    names = content.schema_arrow.names
    if TEXT_FIELD not in names:
        raise ValueError(f"it has no column {TEXT_FIELD!r}, its columns are {', '.join(names)}")
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


def stream_dataset(name: str, config: str | None, num_documents: int) -> Iterator[dict[str, str]]:
    """The first documents of a data set, as they are downloaded."""
    import datasets

    rows = datasets.load_dataset(name, config, split="train", streaming=True).take(num_documents)
    for row in track(rows, f"reading {name}", num_documents):
        yield {TEXT_FIELD: row[TEXT_FIELD]}


def load_dataset(name: str, num_documents: int | None) -> Any:
    """The rows of a data set, a `datasets.Dataset`; downloaded unless they are in the cache of `datasets`."""
    datasets = import_extra("datasets", extra="language", user=f"dataset {name!r}")
    path, _, config = (name, "", "") if Path(name).is_dir() else name.partition(":")
    datasets.disable_progress_bars()
    _log.info("reading data set %s", name)
    try:
        if num_documents is not None and not Path(path).is_dir():
            wanted = {"name": path, "config": config or None, "num_documents": num_documents}
            return datasets.Dataset.from_generator(stream_dataset, gen_kwargs=wanted)
        rows = datasets.load_dataset(path, config or None, split="train")
        if TEXT_FIELD not in rows.column_names:
            raise ValueError(f"its columns are {', '.join(rows.column_names)}, without {TEXT_FIELD!r}")
        return rows if num_documents is None else rows.take(min(num_documents, len(rows)))
    except Exception as error:  # of many kinds: no network, no such data set, no such configuration
        cause = error.__cause__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise InputError(
            f"dataset {name!r} cannot be read ({reason}): expected a data set with texts in {TEXT_FIELD!r} of its split "
            "'train', and a connection that lasts; the same command continues"
        ) from None
