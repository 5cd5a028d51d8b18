"""Prepares a corpus: the tokens of the training documents and of the held-out documents, in a folder of the cache.

The documents are read twice: once for their hashes and once for their tokens; a SentencePiece model is trained in between. A
document is held out if the hash of its words is below a threshold, so that copies of it, even with other white space, are on the
same side; of several copies only the first is used. A corpus is named by a hash of its documents, its tokenizer and what is held
out. Its manifest is written last, so a preparation that was killed starts again. Tokens are mapped into memory, so a corpus may be
larger than memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from recombine.foundation.display import track
from recombine.foundation.errors import InputError
from recombine.foundation.files import data_folder, read_json, replace_file
from recombine.tasks.language.sources import (
    TEXT_FIELD,
    Source,
    find_sources,
    list_files,
    load_dataset,
    read_documents,
)
from recombine.tasks.language.tokenizers import (
    SENTENCEPIECE,
    Tokenizer,
    load_tokenizer,
    read_tokenizer,
    train_sentencepiece,
)

VERSION = 1  # raise it when the same files and settings give other tokens
GROUP_SIZE = 1 << 22  # bytes of files whose documents are one group in the name of a corpus
BATCH_SIZE = 64  # documents that are tokenised at once
SAMPLE_SIZE = 20_000_000  # bytes that a SentencePiece model is trained on
NUM_FRACTIONS = 1 << 64  # hashes of documents are below it
Side = Literal["train", "held_out"]
SIDES: tuple[Side, ...] = ("train", "held_out")
Documents = Iterator[tuple[int, str]]  # number of the group, text
Read = Callable[[list[str]], Documents]  # adds what cannot be read to a list of problems

_log = logging.getLogger(__name__)


class Manifest(TypedDict):
    """What a folder of tokens holds. Those that earlier versions wrote have more keys."""

    vocabulary: int
    dtype: Literal["uint16", "uint32"]
    num_documents: int  # for training
    num_tokens: int  # of these
    held_out: list[int]  # number of tokens of each document


def prepare(
    paths: tuple[str, ...],
    tokenizer: str,
    vocabulary: int,
    held_out: float,
    dataset: str | None = None,
    num_documents: int | None = None,
) -> str:
    """Prepare a corpus unless it is prepared already; returns its name. `held_out` is a fraction of the documents."""
    problems: list[str] = []
    given = None if tokenizer == SENTENCEPIECE else read_tokenizer(tokenizer)
    if dataset is None:
        sources = find_sources(paths, problems)
    else:  # files of a local data set; none of one by name
        sources = list(list_files(Path(dataset), []))
        paths = (f"{dataset} {num_documents}",)
    listed = [[source.name, str(source.path), source.size, source.changed] for source in sources]
    key = _digest([VERSION, listed, [paths, tokenizer, vocabulary, held_out]], given or b"")
    pointer = data_folder("language", "prepared") / f"{key}.json"
    with _exclusive_lock(data_folder("language") / "lock"):
        name = _look_up(pointer)
        if name is None:
            read: Read = partial(_read_files, sources)
            if dataset is not None:
                read = partial(_read_rows, load_dataset(dataset, num_documents))
            name = _prepare(read, given, vocabulary, held_out, problems)
            replace_file(pointer, json.dumps({"corpus": name}).encode())
            for line in problems:
                _log.warning("%s", line)
    return name


def _read_files(sources: Sequence[Source], problems: list[str]) -> Documents:
    """Documents of files, in groups of consecutive files of about `GROUP_SIZE` bytes."""
    group = size = 0
    for source in track(sources, "reading"):
        if size >= GROUP_SIZE:
            group, size = group + 1, 0
        size += source.size
        yield from ((group, text) for text in read_documents(source.path, problems))


def _read_rows(rows: Any, problems: list[str]) -> Documents:
    for row in track(rows, "reading"):
        text = row[TEXT_FIELD]
        if isinstance(text, str) and text.strip():
            yield 0, text


def _prepare(read: Read, given: bytes | None, vocabulary: int, held_out: float, problems: list[str]) -> str:
    """All steps; returns the name of the corpus."""
    sizes: dict[str, int] = {}  # of the documents, by hash
    groups: dict[int, list[str]] = {}  # hashes of the documents, without copies
    for group, text in read(problems):
        key = hash_words(text)
        if key not in sizes:
            groups.setdefault(group, []).append(key)
        sizes[key] = len(text.encode(errors="replace"))
    threshold = _choose_threshold(sizes, held_out, problems)
    content = given or _train_tokenizer(read, sizes, threshold, vocabulary)
    name = _digest([VERSION, held_out, list(groups.values())], content)
    folder = corpus_folder(name)
    if not (folder / "manifest.json").exists():
        folder.mkdir(exist_ok=True)
        replace_file(folder / "tokenizer", content)
        manifest = _write_tokens(folder, read([]), set(sizes), threshold, load_tokenizer(content, vocabulary))
        content = json.dumps({"vocabulary": vocabulary, **manifest}).encode()
        replace_file(folder / "manifest.json", content)  # without it a corpus is not whole
    return name


def _write_tokens(
    folder: Path, documents: Documents, wanted: set[str], threshold: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Write the tokens of the wanted documents, each between tokens for begin and end; returns their numbers."""
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    lengths: dict[Side, list[int]] = {side: [] for side in SIDES}
    with open(folder / "train.bin", "wb") as train, open(folder / "held_out.bin", "wb") as held_out:
        files = {"train": train, "held_out": held_out}
        for batch in _select_batches(documents, wanted):
            for key, tokens in zip(batch, tokenizer.encode_documents([*batch.values()]), strict=True):
                side: Side = "held_out" if _hash_fraction(key) < threshold else "train"
                files[side].write(tokens.astype(dtype).tobytes())
                lengths[side].append(len(tokens))
    if wanted:
        raise InputError("the text has changed while it was read: expected files that stay as they are")
    return {
        "dtype": dtype.name,
        "num_documents": len(lengths["train"]),
        "num_tokens": sum(lengths["train"]),
        "held_out": lengths["held_out"],
    }


def _select_batches(documents: Documents, wanted: set[str]) -> Iterator[dict[str, str]]:
    """The first document of each wanted hash, in batches; removes the hashes from the set."""
    batch: dict[str, str] = {}
    for _, text in documents:
        key = hash_words(text)
        if key in wanted:
            wanted.remove(key)
            batch[key] = text
        if len(batch) == BATCH_SIZE:
            yield batch
            batch = {}
    yield batch


def hash_words(text: str) -> str:
    """A hash of the words of a document: the same for copies that differ in white space."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="replace")).hexdigest()[:32]


def _hash_fraction(key: str) -> int:
    """The hash of a document as a fraction of `NUM_FRACTIONS`; documents below a threshold are held out."""
    return int(key[:16], 16)


def _choose_threshold(sizes: dict[str, int], held_out: float, problems: Sequence[str]) -> int:
    """The fraction below which documents are held out: at least one document is, and at least one is not."""
    if len(sizes) < 2:
        reasons = f" ({'; '.join(problems)})" if problems else ""
        raise InputError(f"the text has {len(sizes)} documents{reasons}: expected at least 2, one of them held out")
    return min(max(int(held_out * NUM_FRACTIONS), _hash_fraction(min(sizes)) + 1), _hash_fraction(max(sizes)))


def _train_tokenizer(read: Read, sizes: dict[str, int], threshold: int, vocabulary: int) -> bytes:
    """A SentencePiece model of the training documents with the highest hashes, about `SAMPLE_SIZE` bytes."""
    total, sample = 0, set()
    for key in sorted((key for key in sizes if _hash_fraction(key) >= threshold), reverse=True):
        sample.add(key)
        total += sizes[key]
        if total > SAMPLE_SIZE:
            break
    _log.info("training a SentencePiece model of %d tokens on %.1f MB", vocabulary, total / 1e6)
    batches = _select_batches(read([]), sample)
    return train_sentencepiece((text for batch in batches for text in batch.values()), vocabulary)


def _look_up(pointer: Path) -> str | None:
    """The name of a prepared corpus; None if the pointer is missing or damaged."""
    try:
        name = str(read_json(pointer)["corpus"])
        return name if (corpus_folder(name) / "manifest.json").exists() else None
    except (ValueError, KeyError):
        return None


def _digest(value: object, content: bytes) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode() + content).hexdigest()[:16]


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a file lock, waiting while another process prepares a corpus."""
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


def _map_file(path: Path) -> mmap.mmap:
    """A file mapped into memory for windows at random places: the system reads no pages around them."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


class Corpus:
    """The tokens in a folder that `prepare` has written, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            manifest: Manifest = read_json(folder / "manifest.json", Manifest)
            self.vocabulary, self.num_tokens = manifest["vocabulary"], manifest["num_tokens"]
            self._lengths = np.array(manifest["held_out"], dtype=np.int64)
            self.num_documents: dict[Side, int] = {"train": manifest["num_documents"], "held_out": len(self._lengths)}
            self._tokens: dict[Side, np.ndarray] = {
                side: np.frombuffer(_map_file(folder / f"{side}.bin"), manifest["dtype"]) for side in SIDES
            }
            for side, expected in zip(SIDES, (self.num_tokens, int(self._lengths.sum())), strict=True):
                if len(self._tokens[side]) != expected:
                    raise ValueError(f"{side}.bin has {len(self._tokens[side])} tokens instead of {expected}")
        except (OSError, ValueError) as error:
            raise InputError(
                f"the corpus in {folder} cannot be read ({error!s:.200}): delete the folder to make it again"
            ) from None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer((self.folder / "tokenizer").read_bytes(), self.vocabulary)

    def window(self, start: int, length: int) -> np.ndarray:
        """Training tokens from a position on; after the last comes the first."""
        return self._tokens["train"][np.arange(start, start + length) % self.num_tokens]

    def held_out(self, start: int, stop: int) -> np.ndarray:
        """Held-out tokens between two positions."""
        return self._tokens["held_out"][start:stop]

    def windows(self, length: int) -> np.ndarray:
        """The windows of the held-out documents that predict up to `length` tokens: document, first token, and end."""
        ends = np.cumsum(self._lengths) - 1
        rows = [
            (document, first, min(first + length, end))
            for document, (end, size) in enumerate(zip(ends.tolist(), self._lengths.tolist(), strict=True))
            for first in range(end + 1 - size, end, length)
        ]
        return np.array(rows, dtype=np.int64)


@lru_cache(maxsize=4)
def _open_corpus(folder: Path) -> Corpus:
    return Corpus(folder)


def load_corpus(name: str) -> Corpus | None:
    """The corpus with a name, if it has been prepared on this machine; opened once per process."""
    folder = corpus_folder(name)
    return _open_corpus(folder) if (folder / "manifest.json").exists() else None
