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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from jaxtyping import Float, Int
from msgspec import Meta, Struct, structs
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import read_file, read_json_lines
from recombine.integrations.huggingface.codes import resolve_pairs
from recombine.random import Stream
from recombine.tasks.base import Ratio, Task
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sampling import Batch, SplitName

MAX_NAMED_GROUPS = 12  # classes whose swaps are also listed pair by pair


Text = Annotated[str, Meta(min_length=1)]


class PromptRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    text: Text
    labels: list[Text] = []
    label: Text | None = None
    pair: tuple[int, int] = (-1, -1)
    split: Literal["train", "ood"] | None = None
    answer: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A row with numbers as labels."""

    row: PromptRow
    composition: Composition


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """The prompts in the order in which they are used, the names of their labels, and a hash of the file."""

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    sha256: str = field(repr=False)

    @property
    def has_answers(self) -> bool:
        return self.prompts[0].row.answer is not None

    def describe(self, composition: Composition) -> str:
        return " + ".join(self.labels[label] for label in composition)

    def make_split(self, held_out: float, seed: int) -> CompositionSplit:
        """The split that the file gives, or one by the hash of compositions; none is held out if all have a single label."""
        compositions = sorted({prompt.composition for prompt in self.prompts})
        if self.prompts[0].row.split is not None:
            ood = {prompt.composition for prompt in self.prompts if prompt.row.split == "ood"}
            train = {prompt.composition for prompt in self.prompts if prompt.row.split != "ood"}
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
    rows = {number: _convert(f"{path} line {number}", row) for number, row in read_json_lines(Path(path)).items()}
    if len(rows) < 4:
        raise InputError(
            f"{path} has {len(rows)} prompts: expected at least 4, to fit decoders on some and score on others"
        )
    first_row = next(iter(rows.values()))
    numbers: dict[tuple[str, tuple[int, int]], int] = {}
    for number, row in rows.items():
        for name in ("split", "answer"):
            if (getattr(row, name) is None) != (getattr(first_row, name) is None):
                raise InputError(f"{path} line {number}: expected {name!r} in every line or in none")
        first = numbers.setdefault((row.text, row.pair), number)
        if first != number:
            raise InputError(
                f"{path} line {number} repeats line {first}: expected prompts that differ in text or pair, since decoders "
                "are fitted on some and scored on others"
            )
    names = tuple(sorted({label for row in rows.values() for label in row.labels}))
    prompts = [Prompt(row=row, composition=tuple(sorted(map(names.index, row.labels)))) for row in rows.values()]
    # an order that says nothing about labels: decoders are fitted on every other prompt
    prompts.sort(key=lambda prompt: _hash(prompt.row.text.encode()))
    return PromptFile(prompts=tuple(prompts), labels=names, sha256=_hash(read_file(Path(path))))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _convert(place: str, value: Any) -> PromptRow:
    """A line with `labels` in the place of `label`."""
    if (fault := find_schema_error(value, PromptRow)) is not None:
        raise InputError(f"{place}: {fault}")
    row = msgspec.convert(value, PromptRow)
    labels = row.labels if row.label is None else [row.label]
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"{place} has labels {labels!r}: expected different words, or one word in 'label'")
    return structs.replace(row, labels=labels)


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
            return tuple(sorted({str(prompt.row.answer) for prompt in self.file.prompts}))
        return tuple(self.file.describe(composition) for composition in self.split.train + self.split.ood)

    @cached_property
    def rows(self) -> dict[str, list[Prompt]]:
        """The prompts of each split. Those of training compositions alternate between `train` and `test`."""
        trained = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.train)]
        held_out = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.ood)]
        counts: Counter[Composition] = Counter()
        rows: dict[str, list[Prompt]] = {"train": [], "test": [], "ood": held_out}
        for prompt in trained:
            rows["test" if counts[prompt.composition] % 2 else "train"].append(prompt)
            counts[prompt.composition] += 1
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
        rows = [self.tokens[prompt.row.text] for prompt in prompts]
        width = max(map(len, self.tokens.values()))
        tokens = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
        pairs = torch.tensor([prompt.row.pair for prompt in prompts])[:, None]
        return torch.cat([resolve_pairs(pairs, (tokens >= 0).long())[:, 0], tokens], dim=1)

    @cached_property
    def tokens(self) -> dict[str, list[int]]:
        """The token numbers of each text."""
        tokens = {prompt.row.text: self.tokenizer(prompt.row.text)["input_ids"] for prompt in self.file.prompts}
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

    def take(self, split: SplitName, places: Sequence[int], device: torch.device | str = "cpu") -> Batch:
        """These prompts of a split."""
        prompts = [self.rows[split][place] for place in places]
        compositions = self.split.compositions(split)
        numbers = [compositions.index(prompt.composition) for prompt in prompts]
        names = [prompt.row.answer or self.file.describe(prompt.composition) for prompt in prompts]
        size = max(map(len, self.split.train + self.split.ood))
        latents = [[*prompt.composition, *[-1] * (size - len(prompt.composition))] for prompt in prompts]
        return Batch(
            self.token_rows[split][list(places)].to(device),
            torch.tensor([self.classes.index(name) for name in names], device=device),
            torch.tensor(latents, device=device),
            {"composition": torch.tensor(numbers, device=device)},
        )

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        return functional.cross_entropy(predictions, batch.targets)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        right = (predictions.argmax(dim=-1) == batch.targets).double()
        return {"accuracy": Ratio(right, torch.ones_like(right))}

    def chance(self, batch: Batch) -> Tensor:
        """Always the most frequent class."""
        fitted = self.take("train", range(len(self.rows["train"])))
        counts = torch.bincount(fitted.targets, minlength=self.output_dim)
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
            yield self.task.take(split, range(min(num_instances, len(rows[split]))), device)
            return
        num_pairs = min((num_instances + 1) // 2, len(rows["test"]))
        fitted, scored = (self.task.take(side, range(num_pairs), device) for side in ("train", "test"))
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
