"""A prepared corpus: tokens of the training documents one after the other, and held-out documents one by one.

Windows are read from the files when they are needed, so a corpus may be larger than memory. The name of a corpus is a hash of
its documents, its tokeniser and what is held out; see `prepare`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from recombine.errors import InputError
from recombine.tasks.language.prepare import corpus_folder
from recombine.tasks.language.tokenizers import Tokenizer, load_tokenizer

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
