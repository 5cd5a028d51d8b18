"""A prepared corpus: tokens of the training documents one after the other, and held-out documents one by one.

The tokens are memory-mapped, so a corpus may be larger than memory. The name of a corpus is a hash of its documents, its
tokeniser and what is held out; see `prepare`.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from recombine.errors import InputError
from recombine.tasks.language.prepare import corpus_folder
from recombine.tasks.language.tokenizers import Tokenizer, load_tokenizer


class Corpus:
    """The tokens in a folder that `prepare` has written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"the corpus in {folder} cannot be read ({error}): delete the folder to make it again"
            ) from None
        self.problems: list[str] = manifest["problems"]
        self.vocabulary: int = manifest["vocabulary"]
        shards = manifest["shards"]
        self._train = self._map(shards, "train")
        self._held_out = self._map(shards, "held_out")
        self.num_documents = {side: sum(len(shard[side]) for shard in shards) for side in ("train", "held_out")}
        self._ends = np.cumsum([len(tokens) for tokens in self._train], dtype=np.int64)
        self._lengths = np.array([length for shard in shards for length in shard["held_out"]], dtype=np.int64)

    def _map(self, shards: list[dict[str, object]], side: str) -> list[np.ndarray]:
        """The non-empty files of a side."""
        found = [(self.folder / f"{shard['number']:05d}.{side}.bin", str(shard["dtype"])) for shard in shards]
        return [np.memmap(path, dtype, mode="r") for path, dtype in found if path.stat().st_size]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer((self.folder / "tokenizer").read_bytes(), self.vocabulary)

    @property
    def num_tokens(self) -> int:
        """Number of training tokens."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_held_out_tokens(self) -> int:
        return int(self._lengths.sum())

    def window(self, start: int, length: int) -> np.ndarray:
        """Training tokens from a position on; after the last comes the first."""
        parts = []
        while length > 0:
            start %= self.num_tokens
            shard = int(np.searchsorted(self._ends, start, side="right"))
            tokens = self._train[shard]
            first = start - (int(self._ends[shard]) - len(tokens))
            parts.append(tokens[first : first + length])
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
        return np.cumsum([len(tokens) for tokens in self._held_out], dtype=np.int64)

    def held_out(self, start: int, stop: int) -> np.ndarray:
        """Held-out tokens between two positions of one document."""
        shard = int(np.searchsorted(self._held_out_ends, start, side="right"))
        tokens = self._held_out[shard]
        first = start - (int(self._held_out_ends[shard]) - len(tokens))
        return tokens[first : first + stop - start]


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
