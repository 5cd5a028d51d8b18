"""A prepared corpus: tokens of the training documents one after the other, and held-out documents one by one.

Windows are read from the files when they are needed, so a corpus may be larger than memory. The name of a corpus is a hash of
its documents, its tokeniser and what is held out; see `prepare`.

Groups of files: hash their documents, then turn these into tokens. Each function may run in a process of its own.

From files of text to files of tokens, once: survey, tokeniser, shards, manifest.

    survey      the hash and size of every document, per group of files
    tokeniser   SentencePiece is trained on documents that are not held out; kept by the hash of what it was trained on
    shards      tokens of the training documents and of the held-out documents, per group of files
    manifest    what the corpus consists of, and its name: a hash of its documents, its tokeniser and what is held out

Each step is a file that is whole or absent, so work that was killed continues where it stopped. Large corpora are prepared
by several processes. A document is held out if the hash of its words is below a threshold, so that copies of it, even with
other white space, are on the same side; of several copies only the first is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from recombine.foundation.errors import InputError
from recombine.foundation.files import data_folder, replace_file
from recombine.foundation.progress import track
from recombine.tasks.language.sources import Problems, Source, find_sources, read_documents
from recombine.tasks.language.tokenizers import (
    BYTES,
    SENTENCEPIECE,
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    read_tokenizer,
    train_sentencepiece,
)

TOP = 1 << 64  # positions are below it


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some files, prepared together in a folder of work."""

    number: int
    sources: tuple[Source, ...]
    folder: Path

    def file(self, ending: str) -> Path:
        return self.folder / f"{self.number:05d}.{ending}"


def hash_words(text: str) -> str:
    """A hash of the words of a document: the same for copies that differ in white space."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="replace")).hexdigest()[:32]


def position(words: str) -> int:
    """Where a hash stands between 0 and `TOP`; documents below a threshold are held out."""
    return int(words[:16], 16)


def survey_group(group: Group) -> None:
    """Write the hash and size of every document, by file."""
    problems = Problems()
    files = [
        [(hash_words(text), len(text.encode(errors="replace"))) for text in read_documents(source, problems)]
        for source in group.sources
    ]
    replace_file(group.file("survey.json"), json.dumps({"files": files, "problems": problems.lines}).encode())


def tokenise_group(group: Group, kept: Sequence[Sequence[bool]], threshold: int, vocabulary: int) -> None:
    """Write the tokens of the documents that are kept; a file that has changed since the survey is left out."""
    tokenizer = load_tokenizer((group.folder / "tokenizer").read_bytes(), vocabulary)
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    files = json.loads(group.file("survey.json").read_bytes())["files"]
    problems = Problems()
    used: list[str] = []
    sides: dict[str, list[np.ndarray]] = {"train": [], "held_out": []}
    for source, surveyed, chosen in zip(group.sources, files, kept, strict=True):
        texts = list(read_documents(source, Problems()))
        words = [hash_words(text) for text in texts]
        if words != [word for word, _ in surveyed] or not source.is_unchanged():
            problems.add(source, "has changed while it was read; left out")
            continue
        for text, own in [(text, own) for text, own, keep in zip(texts, words, chosen, strict=True) if keep]:
            tokens = np.array([tokenizer.bos, *tokenizer.encode(text), tokenizer.eos], dtype)
            sides["held_out" if position(own) < threshold else "train"].append(tokens)
            used.append(own)
    for side, documents in sides.items():
        replace_file(group.file(f"{side}.bin"), np.concatenate([np.zeros(0, dtype), *documents]).tobytes())
    record = {
        "number": group.number,
        "dtype": dtype.name,
        "documents": used,
        "problems": problems.lines,
        **{side: [len(tokens) for tokens in documents] for side, documents in sides.items()},
    }
    replace_file(group.file("shard.json"), json.dumps(record).encode())


VERSION = 1  # raise it when the same files and settings give other tokens
GROUP_SIZE = 1 << 22  # bytes of files that are prepared together
PARALLEL_FROM = 4  # groups
SAMPLE_SIZE = 20_000_000  # bytes that a SentencePiece model is trained on

_log = logging.getLogger(__name__)
_said: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to prepare: files or folders, a tokeniser, and the fraction of documents to hold out."""

    paths: tuple[str, ...]
    tokenizer: str
    vocabulary: int
    held_out: float


def prepare(request: Request) -> str:
    """Prepare a corpus unless it is prepared already; returns its name."""
    problems = Problems()
    sources = find_sources(request.paths, problems)
    content = _given_tokenizer(request.tokenizer)
    key = _digest(
        [
            VERSION,
            [[source.name, str(source.path), source.size, source.changed] for source in sources],
            asdict(request),
        ],
        content or b"",
    )
    pointer = data_folder("language", "prepared") / f"{key}.json"
    work = data_folder("language", "work") / key
    with _only_one(work.with_suffix(".lock")):
        name = _look_up(pointer)
        if name is None:
            work.mkdir(exist_ok=True)
            name = _Preparation(request, sources, content, work, problems).run()
            replace_file(pointer, json.dumps({"corpus": name}).encode())
        shutil.rmtree(work, ignore_errors=True)  # a kill right after the pointer leaves it behind
    for line in problems.lines:
        if line not in _said:  # a command may ask for the same corpus several times
            _said.add(line)
            _log.warning("%s", line)
    return name


def _look_up(pointer: Path) -> str | None:
    """The name of a corpus that has been prepared; a damaged pointer is as good as none."""
    try:
        name = str(json.loads(pointer.read_bytes())["corpus"])
        return name if (corpus_folder(name) / "manifest.json").exists() else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def corpus_folder(name: str) -> Path:
    return data_folder("language", "corpora") / name


class _Preparation:
    """The steps, each on all groups of files."""

    def __init__(
        self, request: Request, sources: Sequence[Source], content: bytes | None, work: Path, problems: Problems
    ) -> None:
        self.request, self.content, self.work, self.problems = request, content, work, problems
        self.groups = _make_groups(sources, work)

    def run(self) -> str:
        self._each("reading", survey_group, [(group,) for group in self.groups], "survey.json")
        surveys = [json.loads(group.file("survey.json").read_bytes()) for group in self.groups]
        kept, threshold = self._choose(surveys)
        content = self.content or self._train_tokenizer(surveys, threshold)
        replace_file(self.work / "tokenizer", content)
        jobs = [
            (group, chosen, threshold, self.request.vocabulary) for group, chosen in zip(self.groups, kept, strict=True)
        ]
        self._each("tokenising", tokenise_group, jobs, "shard.json")
        return self._finish(content, surveys)

    def _each(self, what: str, function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], ending: str) -> None:
        """Call a function for each group whose file is not there yet, in several processes if there are many."""
        jobs = [job for job in jobs if not job[0].file(ending).exists()]
        processes = min(os.cpu_count() or 1, len(jobs))
        if len(jobs) < PARALLEL_FROM or processes == 1:
            for job in track(jobs, what):
                function(*job)
            return
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for future in track([pool.submit(function, *job) for job in jobs], what):
                future.result()

    def _choose(self, surveys: Sequence[Any]) -> tuple[list[list[list[bool]]], int]:
        """Which documents are the first of their kind, and the hash below which they are held out."""
        seen: set[str] = set()
        kept = []
        for survey in surveys:
            kept.append([[_is_new(words, seen) for words, _ in file] for file in survey["files"]])
        if len(seen) < 2:
            for survey in surveys:
                self.problems.lines += survey["problems"]
            reasons = f" ({'; '.join(self.problems.lines)})" if self.problems.lines else ""
            raise InputError(f"the text has {len(seen)} documents{reasons}: expected at least 2, one of them held out")
        lowest, highest = (position(words) for words in (min(seen), max(seen)))
        return kept, min(max(int(self.request.held_out * TOP), lowest + 1), highest)

    def _train_tokenizer(self, surveys: Sequence[Any], threshold: int) -> bytes:
        sizes = {words: size for survey in surveys for file in survey["files"] for words, size in file}
        total, sample = 0, []
        for words in sorted((words for words in sizes if position(words) >= threshold), reverse=True):
            sample.append(words)
            total += sizes[words]
            if total > SAMPLE_SIZE:
                break
        key = _digest([VERSION, self.request.vocabulary, sample])
        path = data_folder("language", "tokenizers") / f"{key}.model"
        if not path.exists():
            _log.info("training a SentencePiece model of %d tokens on %.1f MB", self.request.vocabulary, total / 1e6)
            replace_file(path, train_sentencepiece(self._read(set(sample)), self.request.vocabulary))
        return path.read_bytes()

    def _read(self, wanted: set[str]) -> Iterator[str]:
        for group in self.groups:
            for source in group.sources:
                for text in read_documents(source, Problems()):
                    words = hash_words(text)
                    if words in wanted:
                        wanted.discard(words)
                        yield text

    def _finish(self, content: bytes, surveys: Sequence[Any]) -> str:
        """Write the manifest and move everything to the folder that is named by its content."""
        shards = [json.loads(group.file("shard.json").read_bytes()) for group in self.groups]
        for part in (*surveys, *shards):
            self.problems.lines += part.pop("problems")
        digest = _digest([VERSION, self.request.held_out, [shard["documents"] for shard in shards]], content)
        folder = corpus_folder(digest)
        manifest = {
            "corpus": digest,
            "vocabulary": self.request.vocabulary,
            "problems": self.problems.lines,
            "shards": [{name: value for name, value in shard.items() if name != "documents"} for shard in shards],
        }
        with _only_one(folder.with_suffix(".lock")):  # the same documents may be prepared from two places at once
            if not (folder / "manifest.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(self.work, folder, ignore=shutil.ignore_patterns(".*", "*.survey.json"))
                replace_file(
                    folder / "manifest.json", json.dumps(manifest).encode()
                )  # without it a folder is not whole
        return digest


def _make_groups(sources: Sequence[Source], folder: Path) -> list[Group]:
    """Consecutive files of about `GROUP_SIZE` bytes together."""
    groups: list[list[Source]] = []
    size = GROUP_SIZE
    for source in sources:
        if size >= GROUP_SIZE:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.size
    return [Group(number=number, sources=tuple(files), folder=folder) for number, files in enumerate(groups)]


def _given_tokenizer(name: str) -> bytes | None:
    """The content of a tokeniser that needs no training."""
    if name == SENTENCEPIECE:
        return None
    return ByteTokenizer.content if name == BYTES else read_tokenizer(name)


def _is_new(words: str, seen: set[str]) -> bool:
    if words in seen:
        return False
    seen.add(words)
    return True


def _digest(value: object, content: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode() + content).hexdigest()[:16]


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Wait until no other process prepares the same corpus."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


DTYPES = {"uint16": np.uint16, "uint32": np.uint32}  # of tokens


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A file of tokens. It is opened for each window: a large corpus has more files than a process may keep open."""

    path: Path
    dtype: np.dtype
    num_tokens: int

    def read(self, first: int, stop: int) -> np.ndarray:
        """The tokens between two positions, as far as there are any."""
        count = min(stop, self.num_tokens) - first
        tokens = np.fromfile(self.path, self.dtype, count, offset=first * self.dtype.itemsize)
        if len(tokens) != count:
            raise InputError(f"{self.path} has become shorter while it was read: expected {self.num_tokens:,} tokens")
        return tokens


class Corpus:
    """The tokens in a folder that `prepare` has written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            manifest = json.loads((folder / "manifest.json").read_bytes())
            self.problems: list[str] = manifest["problems"]
            self.vocabulary: int = manifest["vocabulary"]
            shards = manifest["shards"]
            self._train = self._find_files(shards, "train")
            self._held_out = self._find_files(shards, "held_out")
            self.num_documents = {side: sum(len(shard[side]) for shard in shards) for side in ("train", "held_out")}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"the corpus in {folder} cannot be read ({error!r:.200}): delete the folder to make it again"
            ) from None
        self._ends = np.cumsum([file.num_tokens for file in self._train], dtype=np.int64)
        self._lengths = np.array([length for shard in shards for length in shard["held_out"]], dtype=np.int64)

    def _find_files(self, shards: list[dict[str, Any]], side: str) -> list[TokenFile]:
        """The non-empty files of a side, each as long as its documents together."""
        found = []
        for shard in shards:
            path, dtype = self.folder / f"{shard['number']:05d}.{side}.bin", np.dtype(DTYPES[shard["dtype"]])
            size, expected = path.stat().st_size, sum(shard[side]) * dtype.itemsize
            if size != expected:
                raise ValueError(f"{path.name} has {size} bytes instead of {expected}")
            if size:
                found.append(TokenFile(path=path, dtype=dtype, num_tokens=size // dtype.itemsize))
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer((self.folder / "tokenizer").read_bytes(), self.vocabulary)

    @property
    def num_tokens(self) -> int:
        """Number of training tokens."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def window(self, start: int, length: int) -> np.ndarray:
        """Training tokens from a position on; after the last comes the first."""
        parts = []
        while length > 0:
            start %= self.num_tokens
            shard = int(np.searchsorted(self._ends, start, side="right"))
            file = self._train[shard]
            first = start - (int(self._ends[shard]) - file.num_tokens)
            parts.append(file.read(first, first + length))
            length -= len(parts[-1])
            start += len(parts[-1])
        return np.concatenate(parts)

    def windows(self, length: int) -> np.ndarray:
        """The windows of the held-out documents that predict up to `length` tokens: document, first token, and end."""
        return _divide(self, length)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self._lengths) - self._lengths

    @cached_property
    def _held_out_ends(self) -> np.ndarray:
        return np.cumsum([file.num_tokens for file in self._held_out], dtype=np.int64)

    def held_out(self, start: int, stop: int) -> np.ndarray:
        """Held-out tokens between two positions of one document."""
        shard = int(np.searchsorted(self._held_out_ends, start, side="right"))
        file = self._held_out[shard]
        first = start - (int(self._held_out_ends[shard]) - file.num_tokens)
        return file.read(first, first + stop - start)


@lru_cache(maxsize=4)
def _divide(corpus: Corpus, length: int) -> np.ndarray:
    rows = [
        (document, first, min(first + length, int(start + size - 1)))
        for document, (start, size) in enumerate(zip(corpus._starts, corpus._lengths, strict=True))
        for first in range(int(start), int(start + size - 1), length)
    ]
    return np.array(rows, dtype=np.int64)


@lru_cache(maxsize=4)
def open_corpus(folder: Path) -> Corpus:
    """The corpus in a folder; opened once per process."""
    return Corpus(folder)


def load_corpus(name: str) -> Corpus | None:
    """The corpus with a name, if it has been prepared on this machine."""
    folder = corpus_folder(name)
    return open_corpus(folder) if (folder / "manifest.json").exists() else None
