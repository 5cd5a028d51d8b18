"""The task that prompts are: which class each prompt belongs to, and what a probe reads of it.

The classes are the answers if the prompts have some, else their compositions. Inputs are one row of whole numbers per prompt:
positions of query and key, then token numbers, then -1 up to the longest prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit
from recombine.errors import InputError
from recombine.integrations.huggingface_codes import resolve_pairs
from recombine.integrations.huggingface_prompts import Prompt, PromptFile
from recombine.tasks.base import Batch, Ratio, SplitName, Task
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.stream import Stream

MAX_NAMED_GROUPS = 12  # classes whose swaps are also listed pair by pair


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
        """The prompts of each split. Those of training compositions are dealt to `train` and `test` in turn."""
        trained = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.train)]
        held_out = [prompt for prompt in self.file.prompts if prompt.composition in set(self.split.ood)]
        dealt: dict[Composition, int] = {}
        rows: dict[str, list[Prompt]] = {"train": [], "test": [], "ood": held_out}
        for prompt in trained:
            turn = dealt[prompt.composition] = dealt.get(prompt.composition, -1) + 1
            rows["train" if turn % 2 == 0 else "test"].append(prompt)
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
        numbers = [self.tokenizer(prompt.text)["input_ids"] for prompt in prompts]
        for prompt, row in zip(prompts, numbers, strict=True):
            if not 0 < len(row) <= self.max_tokens:
                raise InputError(
                    f"prompt {prompt.text[:40]!r} has {len(row)} tokens: expected 1 to {self.max_tokens} (--max-tokens)"
                )
        width = self._longest
        tokens = torch.tensor([row + [-1] * (width - len(row)) for row in numbers])
        pairs = torch.tensor([prompt.pair for prompt in prompts])[:, None]
        return torch.cat([resolve_pairs(pairs, (tokens >= 0).long())[:, 0], tokens], dim=1)

    @cached_property
    def _longest(self) -> int:
        return max(len(self.tokenizer(prompt.text)["input_ids"]) for prompt in self.file.prompts)

    @property
    def input_dim(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self._longest + 2

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
