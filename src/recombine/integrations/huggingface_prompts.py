"""Prompts with labels as a task, so that a pretrained model is probed as our own runs are.

A prompts file has one JSON object per line:

    text      the prompt
    labels    what it contains: a list of words (or `label`, one word). The labels of a prompt are its composition
    pair      optional, [query, key]: positions of the tokens whose code is read; by default the last token and itself
    split     optional, "train" or "ood"; without it, compositions are held out by their hash
    answer    optional: the text that should follow, for models that predict tokens

Prompts are taken in an order that depends on their text alone. Half of those with training compositions are there to fit
decoders on (`train`), the other half is `test`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.errors import InputError
from recombine.files import read_file

DEFAULT_PAIR = (-1, -1)
KEYS = ("text", "labels", "label", "pair", "split", "answer")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One line of the file; labels as numbers."""

    text: str
    composition: Composition
    pair: tuple[int, int] = DEFAULT_PAIR
    split: str | None = None
    answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """The prompts in the order in which they are used, the names of their labels, and a hash of the file."""

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    sha256: str = field(repr=False)

    @property
    def has_answers(self) -> bool:
        return self.prompts[0].answer is not None

    def describe(self, composition: Composition) -> str:
        return " + ".join(self.labels[label] for label in composition)

    def make_split(self, held_out: float, seed: int) -> CompositionSplit:
        """The split that the file gives, or one by the hash of compositions; none held out if each has a label of its own."""
        compositions = sorted({prompt.composition for prompt in self.prompts})
        if self.prompts[0].split is not None:
            ood = {prompt.composition for prompt in self.prompts if prompt.split == "ood"}
            train = {prompt.composition for prompt in self.prompts if prompt.split != "ood"}
            if ood & train:
                both = self.describe(min(ood & train))
                raise InputError(
                    f"prompts with {both!r} are in train and in ood: expected each composition in one of them"
                )
            if not train:
                raise InputError("every prompt is in ood: expected some in train, to fit decoders on")
            return CompositionSplit(train=tuple(sorted(train)), ood=tuple(sorted(ood)))
        if held_out == 0 or max(map(len, compositions)) == 1:
            return CompositionSplit(train=tuple(compositions), ood=())
        return split_compositions(compositions, held_out=held_out, seed=seed)


def read_prompts(path: Path | str) -> PromptFile:
    """Read and check a prompts file."""
    try:
        content = read_file(Path(path))
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read ({reason}): expected JSON lines with text and labels") from None
    rows = [(number, _read_line(path, number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    if len(rows) < 4:
        raise InputError(
            f"{path} has {len(rows)} prompts: expected at least 4, to fit decoders on some and score on others"
        )
    for name in ("split", "answer"):
        missing = [number for number, row in rows if (row.get(name) is None) != (rows[0][1].get(name) is None)]
        if missing:
            raise InputError(f"{path} line {missing[0]}: expected {name!r} in every line or in none")
    _check_different(path, rows)
    labels = tuple(sorted({label for _, row in rows for label in row["labels"]}))
    numbers = {label: number for number, label in enumerate(labels)}
    prompts = [
        Prompt(
            text=row["text"],
            composition=tuple(sorted(numbers[label] for label in row["labels"])),
            pair=tuple(row.get("pair", DEFAULT_PAIR)),
            split=row.get("split"),
            answer=row.get("answer"),
        )
        for _, row in rows
    ]
    # an order that says nothing about labels: decoders are fitted on every other prompt
    prompts.sort(key=lambda prompt: hashlib.sha256(prompt.text.encode()).digest())
    return PromptFile(prompts=tuple(prompts), labels=labels, sha256=hashlib.sha256(content).hexdigest())


def _check_different(path: Path | str, rows: list[tuple[int, dict[str, Any]]]) -> None:
    """Refuse a prompt that occurs twice: a decoder could be fitted on one copy and scored on the other."""
    lines: dict[tuple[str, tuple[int, ...]], int] = {}
    for number, row in rows:
        first = lines.setdefault((row["text"], tuple(row.get("pair", DEFAULT_PAIR))), number)
        if first != number:
            raise InputError(
                f"{path} line {number} repeats line {first}: expected prompts that differ in text or pair, since decoders "
                "are fitted on some and scored on others"
            )


def _read_line(path: Path | str, number: int, line: str) -> dict[str, Any]:
    where = f"{path} line {number}"
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # a lone surrogate is valid JSON, but not text
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}): expected one object per line") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str) or not row["text"]:
        raise InputError(f"{where} has no text: expected an object with {', '.join(KEYS)}")
    unknown = [key for key in row if key not in KEYS]
    if unknown:
        raise InputError(f"{where} has {unknown[0]!r}: expected only {', '.join(KEYS)}")
    if "label" in row:
        row["labels"] = [row.pop("label")]
    labels = row.get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) and label for label in labels):
        raise InputError(f"{where} has labels {labels!r}: expected a list of words, or one word in 'label'")
    if len(set(labels)) < len(labels):
        raise InputError(f"{where} has labels {labels!r}: expected different words")
    pair = row.get("pair", list(DEFAULT_PAIR))
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(position) is int for position in pair):
        raise InputError(f"{where} has pair {pair!r}: expected [query, key], two positions of tokens")
    if row.get("split") not in (None, "train", "ood"):
        raise InputError(f"{where} has split {row['split']!r}: expected train or ood")
    if "answer" in row and (not isinstance(row["answer"], str) or not row["answer"]):
        raise InputError(f"{where} has answer {row['answer']!r}: expected text")
    return row
