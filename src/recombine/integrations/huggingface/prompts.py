"""Prompts with labels as a task, so that a pretrained model is probed as our own runs are.

A prompts file has one JSON object per line:

    text      the prompt
    labels    what it contains: a list of words (or `label`, one word). The labels of a prompt are its composition
    pair      optional, [query, key]: positions of the tokens whose code is read; by default the last token and itself
    split     optional, "train" or "ood"; without it, compositions are held out by their hash
    answer    optional: the text that should follow, for models that predict tokens

The classes of the task are the answers if the prompts have some, else their compositions. Inputs are one row of whole numbers
per prompt: positions of query and key, then token numbers, then -1 up to the longest prompt. The order of the prompts depends
on their text alone. Half of those with training compositions are for fitting decoders (`train`), the other half is `test`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import read_file
from recombine.integrations.huggingface.codes import resolve_pairs
from recombine.random import Stream
from recombine.tasks.base import Ratio, Task
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sampling import Batch, SplitName

DEFAULT_PAIR = (-1, -1)
MAX_NAMED_GROUPS = 12  # classes whose swaps are also listed pair by pair


class PromptRow(TypedDict):
    """One line of the file."""

    text: str
    labels: NotRequired[list[str]]
    label: NotRequired[str]
    pair: NotRequired[list[int]]
    split: NotRequired[Literal["train", "ood"] | None]
    answer: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt with numbers as labels."""

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
        """The split that the file gives, or one by the hash of compositions; none is held out if all have a single label."""
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
    rows = {number: _read_line(f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip()}
    if len(rows) < 4:
        raise InputError(
            f"{path} has {len(rows)} prompts: expected at least 4, to fit decoders on some and score on others"
        )
    example = next(iter(rows.values()))
    for name in ("split", "answer"):
        for number, row in rows.items():
            if (row.get(name) is None) != (example.get(name) is None):
                raise InputError(f"{path} line {number}: expected {name!r} in every line or in none")
    names = tuple(sorted({label for row in rows.values() for label in row["labels"]}))
    prompts: dict[tuple[str, tuple[int, int]], tuple[int, Prompt]] = {}
    for number, row in rows.items():
        query, key = row.get("pair", DEFAULT_PAIR)
        prompt = Prompt(
            text=row["text"],
            composition=tuple(sorted(names.index(label) for label in row["labels"])),
            pair=(query, key),
            split=row.get("split"),
            answer=row.get("answer"),
        )
        first, _ = prompts.setdefault((prompt.text, prompt.pair), (number, prompt))
        if first != number:
            raise InputError(
                f"{path} line {number} repeats line {first}: expected prompts that differ in text or pair, since decoders "
                "are fitted on some and scored on others"
            )
    # an order that says nothing about labels: decoders are fitted on every other prompt
    ordered = sorted((prompt for _, prompt in prompts.values()), key=lambda prompt: _hash(prompt.text.encode()))
    return PromptFile(prompts=tuple(ordered), labels=names, sha256=_hash(content))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_line(place: str, line: str) -> PromptRow:
    """A line with `labels` in the place of `label`."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place} is not JSON ({error}): expected one object per line") from None
    fault = find_schema_error(row, PromptRow)
    if fault is not None:
        raise InputError(f"{place}: {fault}")
    known = PromptRow.__annotations__
    unknown = [key for key in row if key not in known]
    if unknown:
        raise InputError(f"{place} has {unknown[0]!r}: expected only {', '.join(known)}")
    if "label" in row:
        row["labels"] = [row.pop("label")]
    labels = row.get("labels", [])
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise InputError(f"{place} has labels {labels!r}: expected different words, or one word in 'label'")
    if len(row.get("pair", DEFAULT_PAIR)) != 2:
        raise InputError(f"{place} has pair {row['pair']!r}: expected [query, key], two positions of tokens")
    for name in ("text", "answer"):
        if row.get(name) == "":
            raise InputError(f"{place} has {name} '': expected text")
    return row


@dataclass(frozen=True, kw_only=True)
class Prompts(Task):
    """Prompts as a task. A batch holds at most as many rows as the split has prompts, each once."""

    name: ClassVar[str] = "prompts"
    summary: ClassVar[str] = "prompts for a pretrained model"

    file: PromptFile = field(repr=False)
    tokenizer: Any = field(repr=False)
    max_tokens: int = 64
    held_out: float = 0.25

    @cached_property
    def split(self) -> CompositionSplit:
        return self.file.make_split(self.held_out, self.seed)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Answers, or compositions in words, in the order of `targets`."""
        if self.file.has_answers:
            return tuple(sorted({str(prompt.answer) for prompt in self.file.prompts}))
        return tuple(self.file.describe(composition) for composition in self.split.train + self.split.ood)

    @cached_property
    def rows(self) -> dict[str, list[Prompt]]:
        """The prompts of each split. Those of training compositions alternate between `train` and `test`."""
        trained = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.train)]
        held_out = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.ood)]
        counts: dict[Composition, int] = {}
        rows: dict[str, list[Prompt]] = {"train": [], "test": [], "ood": held_out}
        for prompt in trained:
            counts[prompt.composition] = count = counts.get(prompt.composition, -1) + 1
            rows["train" if count % 2 == 0 else "test"].append(prompt)
        if not rows["test"]:
            raise InputError(
                "no composition of labels has two prompts: expected some that have, to fit on one and score on one"
            )
        return rows

    @cached_property
    def token_rows(self) -> dict[str, Int[Tensor, "rows columns"]]:
        """The inputs of each split."""
        return {split: self._tokenise(prompts) for split, prompts in self.rows.items() if prompts}

    def _tokenise(self, prompts: list[Prompt]) -> Int[Tensor, "rows columns"]:
        rows = [self.tokens[prompt.text] for prompt in prompts]
        width = max(map(len, self.tokens.values()))
        tokens = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
        pairs = torch.tensor([prompt.pair for prompt in prompts])[:, None]
        return torch.cat([resolve_pairs(pairs, (tokens >= 0).long())[:, 0], tokens], dim=1)

    @cached_property
    def tokens(self) -> dict[str, list[int]]:
        """The token numbers of each text."""
        tokens = {prompt.text: self.tokenizer(prompt.text)["input_ids"] for prompt in self.file.prompts}
        for text, row in tokens.items():
            if not 0 < len(row) <= self.max_tokens:
                raise InputError(
                    f"prompt {text[:40]!r} has {len(row)} tokens: expected 1 to {self.max_tokens} (--max-tokens)"
                )
        return tokens

    @property
    def input_dim(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return max(map(len, self.tokens.values())) + 2

    @property
    def output_dim(self) -> int:
        return len(self.classes)

    @property
    def num_read(self) -> int:
        return 1

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """The prompts that the rows of the stream number; nothing is drawn."""
        return self.take(split, [row for row in stream.rows if row < len(self.rows[split])], stream.device)

    def take(self, split: SplitName, numbers: list[int], device: torch.device | str = "cpu") -> Batch:
        """These prompts of a split."""
        prompts = [self.rows[split][number] for number in numbers]
        compositions = self.split.compositions(split)
        size = max(map(len, self.split.train + self.split.ood))
        latents = [[*prompt.composition, *[-1] * (size - len(prompt.composition))] for prompt in prompts]
        return Batch(
            self.token_rows[split][numbers].to(device),
            torch.tensor([self.classes.index(self._class_of(prompt)) for prompt in prompts], device=device),
            torch.tensor(latents, device=device),
            {
                "composition": torch.tensor(
                    [compositions.index(prompt.composition) for prompt in prompts], device=device
                )
            },
        )

    def _class_of(self, prompt: Prompt) -> str:
        return self.file.describe(prompt.composition) if prompt.answer is None else prompt.answer

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        return functional.cross_entropy(predictions, batch.targets)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        right = (predictions.argmax(dim=-1) == batch.targets).double()
        return {"accuracy": Ratio(right, torch.ones_like(right))}

    def chance(self, batch: Batch) -> Tensor:
        """Always the most frequent class."""
        counts = torch.bincount(
            self.take("train", list(range(len(self.rows["train"])))).targets, minlength=self.output_dim
        )
        return counts.double().to(batch.targets.device).expand(len(batch), -1)

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Tensor:
        """The targets: a bound, since a prompt need not determine its class."""
        return functional.one_hot(batch.targets, self.output_dim).double()

    def describe(self, composition: Composition) -> str:
        return self.file.describe(composition)

    def render(self, batch: Batch, row: int) -> str:
        tokens = batch.inputs[row, 2:]
        return str(self.tokenizer.decode(tokens[tokens >= 0].tolist()))

    def reading(self) -> Reading:
        return PromptReading(self)


class PromptReading(Reading):
    """Prompts to fit on and to score on in turn, and swaps between classes."""

    instances = "the prompts"
    codes = "the pair that each prompt names, or its last token attending to itself"
    labels = "the labels of the prompt"
    task: Prompts

    def __init__(self, task: Prompts, *, with_fitted: bool = True) -> None:
        super().__init__(task)
        self.with_fitted = with_fitted
        self.group_names = task.classes if len(task.classes) <= MAX_NAMED_GROUPS else ()

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """For `test`, a row of `train` and one of `test` in turn, as the probe fits decoders on every other row."""
        rows = self.task.rows
        if split != "test" or not self.with_fitted:
            yield self.task.take(split, list(range(min(num_instances, len(rows[split])))), device)
            return
        num_pairs = min((num_instances + 1) // 2, len(rows["test"]))
        fitted, scored = (self.task.take(side, list(range(num_pairs)), device) for side in ("train", "test"))
        order = torch.arange(2 * num_pairs, device=fitted.targets.device).view(2, num_pairs).T.flatten()
        joined = Batch.join([fitted, scored])
        info = {name: column[order] for name, column in joined.info.items()}
        yield Batch(joined.inputs[order], joined.targets[order], joined.latents[order], info)

    @property
    def swap(self) -> Reading | None:
        """Swaps are scored by the readout, so they leave out the prompts that it was fitted on."""
        return PromptReading(self.task, with_fitted=False) if len(self.task.classes) > 1 else None

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        return batch.targets

    def read_answer(self, predictions: Tensor) -> Int[Tensor, " rows"]:
        return predictions.argmax(dim=-1)

    def counterfactual(self, batch: Batch, partner: Int[Tensor, " rows"], answers: Tensor) -> Counterfactual:
        other = batch.targets[partner]
        return Counterfactual(own=batch.targets, other=other, distinct=other != batch.targets)
