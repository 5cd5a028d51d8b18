"""Prepares a corpus from files of text: the tokens of the training documents and of the held-out documents.

    survey       the hash and size of every document, per group of files
    tokenizer    SentencePiece is trained on documents that are not held out, and cached by the hash of these
    tokens       of the training documents and of the held-out documents, per group of files
    corpus       the tokens of all groups, and a manifest; named by a hash of its documents, its tokenizer and what is held out

Each step writes files that are whole or absent, so a preparation that was killed continues where it stopped. Large corpora
are prepared by several processes. A document is held out if the hash of its words is below a threshold, so that copies of it,
even with other white space, are on the same side; of several copies only the first is used. Windows are read from the files
when they are needed, so a corpus may be larger than memory.
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
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from recombine.foundation.display import track
from recombine.foundation.errors import InputError
from recombine.foundation.files import data_folder, read_json, replace_file
from recombine.foundation.imports import safe_path
from recombine.tasks.language.sources import Source, find_sources, read_documents
from recombine.tasks.language.tokenizers import (
    SENTENCEPIECE,
    Tokenizer,
    load_tokenizer,
    read_tokenizer,
    train_sentencepiece,
)

VERSION = 1  # raise it when the same files and settings give other tokens
GROUP_SIZE = 1 << 22  # bytes of files that are prepared together
PARALLEL_FROM = 4  # groups
SAMPLE_SIZE = 20_000_000  # bytes that a SentencePiece model is trained on
NUM_FRACTIONS = 1 << 64  # hashes of documents are below it
Side = Literal["train", "held_out"]
SIDES: tuple[Side, ...] = ("train", "held_out")

_log = logging.getLogger(__name__)


class Group(NamedTuple):
    """Consecutive files of about `GROUP_SIZE` bytes together, and the folder for their results."""

    number: int
    sources: tuple[Source, ...]
    folder: Path

    def file(self, ending: str) -> Path:
        return self.folder / f"{self.number:05d}.{ending}"

    def load(self, ending: str) -> Any:
        return read_json(self.file(ending))


def prepare(paths: tuple[str, ...], tokenizer: str, vocabulary: int, held_out: float) -> str:
    """Prepare a corpus unless it is prepared already; returns its name. `held_out` is a fraction of the documents."""
    problems: list[str] = []
    sources = find_sources(paths, problems)
    given = None if tokenizer == SENTENCEPIECE else read_tokenizer(tokenizer)
    listed = [[source.name, str(source.path), source.size, source.changed] for source in sources]
    key = _digest([VERSION, listed, [paths, tokenizer, vocabulary, held_out]], given or b"")
    pointer = data_folder("language", "prepared") / f"{key}.json"
    work = data_folder("language", "work") / key
    with _exclusive_lock(work.with_suffix(".lock")):
        name = _look_up(pointer)
        if name is None:
            work.mkdir(exist_ok=True)
            name = _prepare(_group_sources(sources, work), given, vocabulary, held_out, problems)
            replace_file(pointer, json.dumps({"corpus": name}).encode())
            for line in problems:
                _log.warning("%s", line)
        shutil.rmtree(work, ignore_errors=True)  # a kill right after the pointer leaves it behind
    return name


def _prepare(
    groups: Sequence[Group], given: bytes | None, vocabulary: int, held_out: float, problems: list[str]
) -> str:
    """All steps; returns the name of the corpus."""
    work = groups[0].folder
    _run_groups("reading", survey_group, [(group,) for group in groups], "survey.json")
    sizes: dict[str, int] = {}  # of the documents, by hash
    copied: list[list[str]] = []  # hashes in a group that occur in earlier ones
    for group in groups:
        survey = group.load("survey.json")
        problems += survey["problems"]
        documents = [document for file in survey["files"] for document in file]
        copied.append([key for key, _ in documents if key in sizes])
        sizes |= documents
    threshold = _choose_threshold(sizes, held_out, problems)
    content = given or _train_tokenizer(groups, sizes, threshold, vocabulary)
    replace_file(work / "tokenizer", content)
    jobs = [(group, keys, threshold, vocabulary) for group, keys in zip(groups, copied, strict=True)]
    _run_groups("tokenising", tokenise_group, jobs, "tokens.json")
    parts = [group.load("tokens.json") for group in groups]
    problems += [problem for part in parts for problem in part["problems"]]
    name = _digest([VERSION, held_out, [part["documents"] for part in parts]], content)
    lengths = {side: [length for part in parts for length in part[side]] for side in SIDES}
    manifest = {
        "vocabulary": vocabulary,
        "dtype": parts[0]["dtype"],
        "problems": problems,
        "num_documents": len(lengths["train"]),
        "num_tokens": sum(lengths["train"]),
        "held_out": lengths["held_out"],
    }
    folder = corpus_folder(name)
    with _exclusive_lock(folder.with_suffix(".lock")):  # the same documents may be prepared from two places at once
        if not (folder / "manifest.json").exists():
            folder.mkdir(exist_ok=True)
            for side in SIDES:
                with open(folder / f"{side}.bin", "wb") as whole:
                    for group in groups:
                        with open(group.file(f"{side}.bin"), "rb") as part:
                            shutil.copyfileobj(part, whole)
            replace_file(folder / "tokenizer", content)
            replace_file(folder / "manifest.json", json.dumps(manifest).encode())  # without it a corpus is not whole
    return name


def _run_groups(what: str, function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], ending: str) -> None:
    """Call a function for each group whose file is missing, in several processes if there are many."""
    jobs = [job for job in jobs if not job[0].file(ending).exists()]
    processes = min(os.cpu_count() or 1, len(jobs))
    if len(jobs) < PARALLEL_FROM or processes == 1:
        for job in track(jobs, what):
            function(*job)
        return
    with safe_path(), ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in track([pool.submit(function, *job) for job in jobs], what):
            future.result()


def survey_group(group: Group) -> None:
    """Write the hash and size of every document, by file."""
    problems: list[str] = []
    files = [
        [(hash_words(text), len(text.encode())) for text in read_documents(source, problems)]
        for source in group.sources
    ]
    replace_file(group.file("survey.json"), json.dumps({"files": files, "problems": problems}).encode())


def tokenise_group(group: Group, copied: Sequence[str], threshold: int, vocabulary: int) -> None:
    """Write the tokens of all documents but copies; a file that has changed since the survey is left out."""
    tokenizer = load_tokenizer((group.folder / "tokenizer").read_bytes(), vocabulary)
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    problems: list[str] = []
    used: dict[str, None] = {}
    sides: dict[Side, list[np.ndarray]] = {"train": [], "held_out": []}
    seen = set(copied)
    for source, surveyed in zip(group.sources, group.load("survey.json")["files"], strict=True):
        texts = {hash_words(text): text for text in reversed([*read_documents(source, [])])}
        keys = [key for key, _ in surveyed]
        if set(texts) != set(keys):
            problems.append(f"{source.path}: has changed while it was read; left out")
            continue
        for key in dict.fromkeys(keys):
            if key not in seen:
                side: Side = "held_out" if _hash_fraction(key) < threshold else "train"
                sides[side].append(np.array([tokenizer.bos, *tokenizer.encode(texts[key]), tokenizer.eos], dtype))
                used[key] = None
        seen |= used.keys()
    for side, documents in sides.items():
        replace_file(group.file(f"{side}.bin"), np.concatenate([np.zeros(0, dtype), *documents]).tobytes())
    record = {"dtype": dtype.name, "documents": list(used), "problems": problems}
    lengths = {side: [len(tokens) for tokens in documents] for side, documents in sides.items()}
    replace_file(group.file("tokens.json"), json.dumps({**record, **lengths}).encode())


def hash_words(text: str) -> str:
    """A hash of the words of a document: the same for copies that differ in white space."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:32]


def _hash_fraction(key: str) -> int:
    """The hash of a document as a fraction of `NUM_FRACTIONS`; documents below a threshold are held out."""
    return int(key[:16], 16)


def _choose_threshold(sizes: dict[str, int], held_out: float, problems: Sequence[str]) -> int:
    """The fraction below which documents are held out: at least one document is, and at least one is not."""
    if len(sizes) < 2:
        reasons = f" ({'; '.join(problems)})" if problems else ""
        raise InputError(f"the text has {len(sizes)} documents{reasons}: expected at least 2, one of them held out")
    return min(max(int(held_out * NUM_FRACTIONS), _hash_fraction(min(sizes)) + 1), _hash_fraction(max(sizes)))


def _train_tokenizer(groups: Sequence[Group], sizes: dict[str, int], threshold: int, vocabulary: int) -> bytes:
    """A SentencePiece model of the training documents with the highest hashes, about `SAMPLE_SIZE` bytes."""
    total, sample = 0, []
    for key in sorted((key for key in sizes if _hash_fraction(key) >= threshold), reverse=True):
        sample.append(key)
        total += sizes[key]
        if total > SAMPLE_SIZE:
            break
    path = data_folder("language", "tokenizers") / f"{_digest([VERSION, vocabulary, sample])}.model"
    if not path.exists():
        _log.info("training a SentencePiece model of %d tokens on %.1f MB", vocabulary, total / 1e6)
        replace_file(path, train_sentencepiece(_read_sample(groups, set(sample)), vocabulary))
    return path.read_bytes()


def _read_sample(groups: Sequence[Group], wanted: set[str]) -> Iterator[str]:
    for source in (source for group in groups for source in group.sources):
        for text in read_documents(source, []):
            key = hash_words(text)
            if key in wanted:
                wanted.discard(key)
                yield text


def _group_sources(sources: Sequence[Source], folder: Path) -> list[Group]:
    groups: list[list[Source]] = []
    size = GROUP_SIZE
    for source in sources:
        if size >= GROUP_SIZE:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.size
    return [Group(number, tuple(files), folder) for number, files in enumerate(groups)]


def _look_up(pointer: Path) -> str | None:
    """The name of a prepared corpus; None if the pointer is missing or damaged."""
    try:
        name = str(read_json(pointer)["corpus"])
        return name if (corpus_folder(name) / "manifest.json").exists() else None
    except (ValueError, KeyError, TypeError):
        return None


def _digest(value: object, content: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode() + content).hexdigest()[:16]


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a file lock, waiting while another process prepares the same corpus."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def corpus_folder(name: str) -> Path:
    return data_folder("language", "tokens") / name


class Corpus:
    """The tokens in a folder that `prepare` has written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            manifest = read_json(folder / "manifest.json")
            self.problems: list[str] = manifest["problems"]
            self.vocabulary: int = manifest["vocabulary"]
            self.num_tokens: int = manifest["num_tokens"]  # of the training documents
            self._dtype = np.dtype({"uint16": np.uint16, "uint32": np.uint32}[manifest["dtype"]])
            self._lengths = np.array(manifest["held_out"], dtype=np.int64)
            self.num_documents: dict[Side, int] = {"train": manifest["num_documents"], "held_out": len(self._lengths)}
            for side, num_tokens in (("train", self.num_tokens), ("held_out", int(self._lengths.sum()))):
                size, expected = (folder / f"{side}.bin").stat().st_size, num_tokens * self._dtype.itemsize
                if size != expected:
                    raise ValueError(f"{side}.bin has {size} bytes instead of {expected}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the corpus in {folder} cannot be read ({error!r:.200}): delete the folder to make it again"
            ) from None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer((self.folder / "tokenizer").read_bytes(), self.vocabulary)

    def window(self, start: int, length: int) -> np.ndarray:
        """Training tokens from a position on; after the last comes the first."""
        start %= self.num_tokens
        parts = []
        while length > 0:
            count = min(length, self.num_tokens - start)
            parts.append(self._read("train", start, count))
            start, length = 0, length - count
        return np.concatenate(parts)

    def held_out(self, start: int, stop: int) -> np.ndarray:
        """Held-out tokens between two positions."""
        return self._read("held_out", start, stop - start)

    def windows(self, length: int) -> np.ndarray:
        """The windows of the held-out documents that predict up to `length` tokens: document, first token, and end."""
        ends = np.cumsum(self._lengths) - 1
        rows = [
            (document, first, min(first + length, end))
            for document, (end, size) in enumerate(zip(ends.tolist(), self._lengths.tolist(), strict=True))
            for first in range(end + 1 - size, end, length)
        ]
        return np.array(rows, dtype=np.int64)

    def _read(self, side: Side, first: int, count: int) -> np.ndarray:
        path = self.folder / f"{side}.bin"
        tokens = np.fromfile(path, self._dtype, count, offset=first * self._dtype.itemsize)
        if len(tokens) != count:
            raise InputError(f"{path} has become shorter while it was read: delete its folder to make it again")
        return tokens


@lru_cache(maxsize=4)
def _open_corpus(folder: Path) -> Corpus:
    return Corpus(folder)


def load_corpus(name: str) -> Corpus | None:
    """The corpus with a name, if it has been prepared on this machine; opened once per process."""
    folder = corpus_folder(name)
    return _open_corpus(folder) if (folder / "manifest.json").exists() else None
