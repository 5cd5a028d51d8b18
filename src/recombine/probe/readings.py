"""What to read of a task: which instances, which key-query pairs, and which labels a decoder should find in them.

Of any task: the last token attending to itself, and the modules that made the instance. Fuzzy logic is read so, with one
logistic decoder a term (Attention as a Hypernetwork, section 3). SRAVEN is read on instances without permutations, where
the rule of the last feature is known: the last query token attending to the same feature in its own row, itself included
(section 4). Sequence teachers are read at the last token, with the teacher's hidden state in place of modules.

The paper's pictures and decoders of fuzzy logic show the same examples to every function: only the function and the query
vary. Its other choice is the same query for all: only the function and its examples vary. Both are easier to decode than
instances as trained on, so they are readings of their own; pictures are made of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.evaluate import BATCH_SIZE, evaluation_batches
from recombine.tasks import Batch, FuzzyLogic, SequenceTeacher, SplitName, SRaven, Task
from recombine.tasks.fuzzy_logic.task import evaluate_function


class Reading:
    """The default: the last token's code of itself, and the modules of the instance."""

    instances: str = "instances as trained on"
    codes: ClassVar[str] = "the last token attending to itself"
    labels: ClassVar[str] = "the modules of the instance"

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def variants(self) -> dict[str, Reading]:
        """Other instances whose codes are read too, by name; pictures are made of those named `pictured`."""
        return {}

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str) -> Iterable[Batch]:
        """The first instances of a split."""
        return evaluation_batches(self.task, split, num_instances, device)

    @property
    def keys(self) -> tuple[int, ...]:
        """Keys whose code with the last query is read, counted from the end of the sequence."""
        return (-1,)

    @property
    def modules(self) -> tuple[int, ...]:
        """The modules that a decoder looks for: all that occur in training or in held-out compositions."""
        return tuple(self.task.split.certificate.coverage)

    @property
    def module_names(self) -> tuple[str, ...]:
        names = [self.task.describe((module,)) for module in self.modules]
        return tuple(name[1:-1] if name.startswith("(") and name.endswith(")") else name for name in names)

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        """1 where the row is made of the module, else 0."""
        modules = torch.tensor(self.modules, device=batch.latents.device)
        return (batch.latents[:, :, None] == modules).any(dim=1).float()

    def target(self, batch: Batch) -> Shaped[Tensor, " rows"]:
        """The one number of the answer that is given at the last token."""
        return batch.targets.reshape(len(batch), -1)[:, -1]

    def choose_metric(self, metrics: dict[str, object]) -> str:
        """The score that interventions are measured by: pooled where there is a choice, else the headline."""
        return next((name for name in metrics if name.endswith("_pooled")), next(iter(metrics)))

    def as_dict(self) -> dict[str, str]:
        return {"instances": self.instances, "codes": self.codes, "labels": self.labels}


class FuzzyLogicReading(Reading):
    """Fuzzy logic, read as any task, and with examples or query fixed."""

    @property
    def variants(self) -> dict[str, Reading]:
        return {"pictured": FixedReading(self.task, "context"), "same_query": FixedReading(self.task, "query")}


class FixedReading(Reading):
    """Fuzzy logic functions, all at the same examples or all at the same query."""

    def __init__(self, task: Task, fixed: Literal["context", "query"]) -> None:
        assert isinstance(task, FuzzyLogic)
        super().__init__(task)
        self.fixed = fixed
        self.instances = f"every function with the same {'examples' if fixed == 'context' else 'query'}"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str) -> Iterator[Batch]:
        where = slice(None, -1) if self.fixed == "context" else slice(-1, None)
        shared = self.task.sample("test", 0, batch_size=1, device=device).inputs[:, where, :-1]
        for batch in super().batches(split, num_instances, device):
            x = batch.inputs[..., :-1].clone()
            x[:, where] = shared
            y = evaluate_function(x, batch.latents)
            inputs = torch.cat([x, y[..., None]], dim=-1)
            inputs[:, -1, -1] = 0
            yield replace(batch, inputs=inputs, targets=y[:, -1])


class SRavenReading(Reading):
    """The last feature of unpermuted puzzles: its rule, and the code of its row."""

    instances = "puzzles without permutations"
    codes = "the last query token attending to the same feature in its own row, and to itself"
    labels = "the rule of the last feature"

    def __init__(self, task: Task) -> None:
        assert isinstance(task, SRaven)
        super().__init__(replace(task, permuted=False))
        self.grid_size, self.num_features = task.grid_size, task.num_features

    @property
    def keys(self) -> tuple[int, ...]:
        return tuple(-1 - column * self.num_features for column in reversed(range(self.grid_size)))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return one_hot(batch.info["rules"][:, -1], len(self.modules)).float()


class StrengthReading(Reading):
    """Tasks that mix modules, more of some and less of others."""

    labels = "the strength of each module in the task"

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return batch.info["strengths"][:, list(self.modules)]


class FirstStepReading(Reading):
    """Episodes, read at their first step: the last one may be empty. Models that take each step alone notice nothing."""

    instances = "the first step of each episode, in place of all its steps"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str) -> Iterator[Batch]:
        for batch in super().batches(split, num_instances, device):
            inputs, targets, optimal = (
                each[:, :1].expand_as(each) for each in (batch.inputs, batch.targets, batch.info["optimal"])
            )
            yield replace(batch, inputs=inputs, targets=targets, info={**batch.info, "optimal": optimal})


class PreferenceGridReading(FirstStepReading, StrengthReading):
    """Mixtures of preferences at the first step."""


class SequenceTeacherReading(Reading):
    """The last token of the longest sequences of each split: linear identification of the teacher's hidden state."""

    instances = "sequences of the greatest length of their split"
    labels = "the teacher's hidden state"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str) -> Iterator[Batch]:
        assert isinstance(self.task, SequenceTeacher)
        length = self.task.lengths(split)[1]
        for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
            rows = range(min(BATCH_SIZE, num_instances - first))
            yield self.task.sample(split, index, batch_size=BATCH_SIZE, rows=rows, device=device, length=length)

    @property
    def module_names(self) -> tuple[str, ...]:
        assert isinstance(self.task, SequenceTeacher)
        return tuple(f"unit {i}" for i in range(self.task.teacher_dim))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return batch.info["hidden"][:, -1]


READINGS: dict[str, type[Reading]] = {
    "fuzzy_logic": FuzzyLogicReading,
    "sraven": SRavenReading,
    "hyperteacher": StrengthReading,
    "in_context": StrengthReading,
    "preference_grid": PreferenceGridReading,
    "goal_grid": FirstStepReading,
    "sequence_teacher": SequenceTeacherReading,
}


def read_task(task: Task) -> Reading:
    """What to read of this task."""
    return READINGS.get(task.name, Reading)(task)
