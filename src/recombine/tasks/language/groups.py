"""Groups of files: hash their documents, then turn these into tokens. Each function may run in a process of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recombine.files import replace_file
from recombine.tasks.language.sources import Problems, Source, read_documents
from recombine.tasks.language.tokenizers import load_tokenizer

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
