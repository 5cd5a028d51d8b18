"""Tokenizers: plain bytes, SentencePiece, and `tokenizer.json` files of Hugging Face.

A tokenizer knows the number of bytes of text of each token, so that losses can be given in bits per byte, which are
comparable between tokenizers. SentencePiece is trained with the settings of a language model for text of any kind: no
normalisation, so that decoding gives back the text; unknown characters as bytes; spaces and line ends as tokens.
"""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from recombine.foundation.errors import InputError, import_extra, require
from recombine.foundation.files import parse_json, read_file
from recombine.tasks.language.sources import divide

BYTES, SENTENCEPIECE = "bytes", "sentencepiece"
MAX_SENTENCE = 2048  # characters of a line that a SentencePiece model is trained on
NUM_TRAINING_THREADS = 4  # fixed, because sums over threads decide about ties
NUM_BYTES = 256
MIN_VOCABULARY = 512
OTHERWISE = ", or --tokenizer bytes"
# of documents, in a tokenizer.json
STARTS = ("<s>", "<bos>", "<|begin_of_text|>", "[CLS]")
ENDS = ("</s>", "<|endoftext|>", "<eos>", "<|end_of_text|>", "[SEP]")


class Tokenizer(ABC):
    """Text to tokens and back. `bos`, `eos` and `pad` are tokens for the ends of documents and for padding."""

    size: int
    bos: int
    eos: int
    pad: int
    content: bytes  # the file that it can be loaded from again

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int] | np.ndarray]:
        """The tokens of each of several texts of moderate length."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; tokens for the ends of documents have none."""

    @property
    @abstractmethod
    def num_bytes(self) -> np.ndarray:
        """The number of bytes of text of each token."""

    @property
    @abstractmethod
    def rare(self) -> tuple[int, ...]:
        """At least 128 tokens that hardly occur in text, for in-context recall."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text of any length."""
        return [int(token) for part in self.encode_batch([*divide(text)]) for token in part]

    def encode_documents(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The tokens of each text, between those for begin and end."""
        parts = [[*divide(text)] for text in texts]
        encoded = iter(self.encode_batch([part for document in parts for part in document]))
        for document in parts:
            yield np.concatenate([[self.bos], *islice(encoded, len(document)), [self.eos]])


class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8."""

    size = NUM_BYTES + 3
    bos, eos, pad = NUM_BYTES, NUM_BYTES + 1, NUM_BYTES + 2
    content = BYTES.encode()
    rare = tuple(range(128, 256))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(errors="replace"), np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < NUM_BYTES).decode(errors="replace")

    @property
    def num_bytes(self) -> np.ndarray:
        return (np.arange(self.size) < NUM_BYTES).astype(np.int64)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model."""

    def __init__(self, content: bytes, size: int | None = None) -> None:
        self.content = content
        try:
            self.model: Any = _sentencepiece().SentencePieceProcessor(model_proto=content)
        except RuntimeError as error:
            raise InputError(f"the SentencePiece model cannot be read ({error}): expected a .model file") from None
        self.size = self.model.vocab_size() if size is None else max(size, self.model.vocab_size())
        self.bos, self.eos, pad = self.model.bos_id(), self.model.eos_id(), self.model.pad_id()
        if min(self.bos, self.eos) < 0:
            self.bos = self.eos = max(self.bos, self.eos, self.model.unk_id())
        self.pad = pad if pad >= 0 else self.eos

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.model.encode(list(texts))

    def decode(self, tokens: Sequence[int]) -> str:
        known = self.model.vocab_size()
        return self.model.decode([token for token in tokens if token < known and not self.model.is_control(token)])

    @cached_property
    def num_bytes(self) -> np.ndarray:
        lengths = np.zeros(self.size, dtype=np.int64)
        for token in range(self.model.vocab_size()):
            if self.model.is_byte(token):
                lengths[token] = 1
            elif not self.model.is_control(token):
                lengths[token] = len(self.model.id_to_piece(token).replace("\u2581", " ").encode())
        return lengths

    @cached_property
    def rare(self) -> tuple[int, ...]:
        as_bytes = [token for token in range(self.model.vocab_size()) if self.model.is_byte(token)]
        return tuple(as_bytes[-128:]) if len(as_bytes) >= 128 else tuple(range(self.size - 128, self.size))


@contextmanager
def _name_tokenizer() -> Iterator[None]:
    """Say in one line what is wrong with a tokenizer.json; the package also raises exceptions that are no `Exception`."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"the tokenizer cannot be used ({reason}): expected a working tokenizer.json") from None


class FileTokenizer(Tokenizer):
    """A `tokenizer.json` of Hugging Face."""

    def __init__(self, content: bytes) -> None:
        tokenizers = import_extra("tokenizers", extra="language", user="a tokenizer.json", instead=OTHERWISE)
        self.content = content
        with _name_tokenizer():
            self.model = tokenizers.Tokenizer.from_buffer(content)
        self.size = self.model.get_vocab_size()
        if (largest := max(self.model.get_vocab().values(), default=-1)) >= self.size:
            raise InputError(f"the tokenizer has {self.size} tokens and token {largest}: expected smaller numbers")
        ends, starts = (
            [token for token in map(self.model.token_to_id, names) if token is not None] for names in (ENDS, STARTS)
        )
        if not ends:
            raise InputError(f"the tokenizer has no token for the end: expected one of {', '.join(ENDS)}")
        self.eos = self.pad = ends[0]
        self.bos = (starts or ends)[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        with _name_tokenizer():
            return [each.ids for each in self.model.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        with _name_tokenizer():
            return self.model.decode([int(token) for token in tokens], skip_special_tokens=True)

    @cached_property
    def num_bytes(self) -> np.ndarray:
        with _name_tokenizer():
            return self._count_bytes()

    def _count_bytes(self) -> np.ndarray:
        content = parse_json(self.content, Any, "the tokenizer")
        byte_level = "ByteLevel" in json.dumps(content.get("decoder"))
        as_bytes = re.compile("<0x[0-9A-F]{2}>" if content["model"].get("byte_fallback") else "(?!)")
        prefix = content["model"].get("continuing_subword_prefix") or ""  # WordPiece has one, and drops white space
        special = {token for token, added in self.model.get_added_tokens_decoder().items() if added.special}
        lengths = np.zeros(self.size, dtype=np.int64)
        for token in range(self.size):
            piece = self.model.id_to_token(token)
            if piece is None or token in special:
                continue
            if byte_level:  # each character is a byte
                lengths[token] = len(piece)
            elif as_bytes.fullmatch(piece):
                lengths[token] = 1
            else:
                lengths[token] = len(piece.removeprefix(prefix).replace("\u2581", " ").encode())
        return lengths

    @cached_property
    def rare(self) -> tuple[int, ...]:
        if self.size < 256:
            raise InputError(f"the tokenizer has {self.size} tokens: expected at least 256")
        return tuple(range(self.size - 128, self.size))


def _sentencepiece() -> Any:
    return import_extra("sentencepiece", extra="language", user="tokenizer 'sentencepiece'", instead=OTHERWISE)


def train_sentencepiece(documents: Iterator[str], vocabulary: int) -> bytes:
    """A byte-pair model of at most `vocabulary` tokens, trained on the lines of documents."""
    least = f"at least {MIN_VOCABULARY}, all bytes and some characters"
    require(vocabulary >= MIN_VOCABULARY, "vocabulary", vocabulary, least)
    lines = (
        line[start : start + MAX_SENTENCE]
        for text in documents
        for line in text.split("\n")
        for start in range(0, len(line), MAX_SENTENCE)
    )
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=(line.replace("\0", " ") for line in lines if line.strip()),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            user_defined_symbols=["\n"],
            pad_id=3,
            num_threads=NUM_TRAINING_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"no SentencePiece model of {vocabulary} tokens can be trained on this text ({str(error).strip()}): "
            "expected more text, or another vocabulary"
        ) from None
    return model.getvalue()


@lru_cache(maxsize=8)
def load_tokenizer(content: bytes, vocabulary: int | None = None) -> Tokenizer:
    """The tokenizer that a content was saved from; `vocabulary` is at least the number of its tokens, if known."""
    if content == ByteTokenizer.content:
        return ByteTokenizer()
    return FileTokenizer(content) if content[:1] == b"{" else SentencePieceTokenizer(content, vocabulary)


def read_tokenizer(path: str) -> bytes:
    """The content of a tokenizer that the user names: bytes, or a file."""
    if path == BYTES:
        return ByteTokenizer.content
    try:
        content = read_file(Path(path))
        if not content:
            raise OSError(0, "it is empty")
        return content
    except OSError as error:
        raise InputError(
            f"tokenizer {path!r} cannot be read ({error.strerror}): expected {BYTES}, {SENTENCEPIECE}, or a file: "
            "a SentencePiece .model or a tokenizer.json"
        ) from None
