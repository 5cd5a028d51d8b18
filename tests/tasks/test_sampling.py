"""Sampling, for every task: batches are pure functions, any rows can be made alone, and no split leaks into another."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.tasks import TASKS
from recombine.tasks.sampling import Batch, find_leaks, list_compositions
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven
from recombine.training.config import default_run
from recombine.training.trainer import BatchGroups, Trainer

TINY = {name: default_run(name, "tiny") for name in TASKS}
CORNERS = SequenceTeacher(generalise_to="corners", max_length=3, token_dim=6)
TEACHERS = ("deep_set", "attention", "ssm", "rnn", "product")
# tasks whose batches come from matrix products, which may round in another way for another number of rows
WITH_PRODUCTS = ("hyperteacher", "in_context", "sequence_teacher")


def assert_same(name: str, found: Batch, expected: Batch) -> None:
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if name in WITH_PRODUCTS else {"rtol": 0, "atol": 0}
    assert found.info.keys() == expected.info.keys()
    pairs = [(getattr(found, column), getattr(expected, column)) for column in ("inputs", "targets", "latents")]
    for one, other in [*pairs, *((found.info[key], expected.info[key]) for key in found.info)]:
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_a_pure_function_of_its_arguments(name):
    task = TINY[name].task
    for split in task.splits:
        first = task.sample(split, 3, batch_size=6)
        for column in (first.inputs, first.targets, first.latents, *first.info.values()):
            column.zero_()  # what is done to a batch is not done to the same batch, sampled again
        task.sample(split, 4, batch_size=6)
        again, fresh = task.sample(split, 3, batch_size=6), replace(task).sample(split, 3, batch_size=6)
        assert torch.equal(again.inputs, fresh.inputs)
        assert torch.equal(again.targets, fresh.targets)
        assert again.inputs.any()


SMALL: dict[str, Any] = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2, "longest": 14}
VARIANTS = {
    **{name: TINY[name].task for name in TASKS},
    "sraven, unambiguous": SRaven(num_values=6, unambiguous=True),
    "sraven, 8 features": SRaven(num_features=8),
    "corners": CORNERS,
    **{f"sequence_teacher, {name}": SequenceTeacher(teacher=name, **SMALL) for name in TEACHERS},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_part_are_rows_of_the_whole(variant):
    task, name = VARIANTS[variant], VARIANTS[variant].name
    for split in task.splits:
        whole, part = task.sample(split, 2, batch_size=24), task.sample(split, 2, batch_size=24, rows=range(7, 19))
        info = {key: column[7:19] for key, column in whole.info.items()}
        assert_same(name, part, Batch(whole.inputs[7:19], whole.targets[7:19], whole.latents[7:19], info))


@pytest.mark.parametrize("name", [*TASKS, "corners"])
def test_a_batch_does_not_depend_on_the_default_type(name):
    task = CORNERS if name == "corners" else TINY[name].task
    for split in task.splits:
        expected = replace(task).sample(split, 3, batch_size=6)
        try:
            torch.set_default_dtype(torch.float64)
            found = replace(task).sample(split, 3, batch_size=6)
        finally:
            torch.set_default_dtype(torch.float32)
        for column in ("inputs", "targets"):
            torch.testing.assert_close(getattr(found, column), getattr(expected, column), rtol=0, atol=0)


@pytest.mark.parametrize("name", TASKS)
def test_several_batches_at_once_are_the_batches_alone(name):
    task = TINY[name].task
    for split, rows in (("train", None), ("train", range(3, 7)), ("ood", range(2, 6))):
        batches = task.sample_many(split, 13, 5, batch_size=8, rows=rows)
        assert len(batches) == 5
        for number, batch in enumerate(batches):
            assert_same(name, batch, task.sample(split, 13 + number, batch_size=8, rows=rows))
    assert task.sample_many("train", 0, 0) == []
    assert [len(batch) for batch in task.sample_many("train", 0, 3, rows=range(2, 2))] == [0, 0, 0]


@pytest.mark.parametrize("name", TASKS)
def test_a_training_sees_the_same_bits_wherever_it_starts(name):
    task = TINY[name].task
    expected = BatchGroups(task, batch_size=16)
    batches = [expected[index] for index in range(20)]
    for first in (1, 7, 15, 16):
        resumed = BatchGroups(replace(task), batch_size=16)
        for index in range(first, 20):
            batch = resumed[index]
            assert torch.equal(batch.inputs, batches[index].inputs)
            assert torch.equal(batch.targets, batches[index].targets)


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].max_batches_at_once > 1])
def test_training_resumes_with_the_same_bits_within_a_group(name):
    config = TINY[name]
    assert config.task.count_batches_at_once(config.training.batch_size) > 3

    def make_trainer() -> Trainer:
        return Trainer(build_model(config.model, config.task, seed=0), replace(config.task), config.training, "cpu")

    whole, part = make_trainer(), make_trainer()
    losses = [whole.advance() for _ in range(5)]
    for _ in range(3):
        part.advance()
    resumed = make_trainer()
    resumed.load_state(part.state(), 3)
    assert [resumed.advance(), resumed.advance()] == losses[3:]


@pytest.mark.parametrize("name", TASKS)
def test_batches_join_and_divide(name):
    task = TINY[name].task
    batches = [task.sample("train", index, batch_size=4) for index in range(3)]
    joined = Batch.join(batches)
    assert len(joined) == 12
    for part, batch in zip(joined.divide(4), batches, strict=True):
        assert_same("", part, batch)
    parts = joined.divide(5)
    assert [len(part) for part in parts] == [5, 5, 2]
    assert_same("", Batch.join(parts), joined)
    with pytest.raises(InputError, match="no batches to join"):
        Batch.join([])


def test_a_split_that_the_task_does_not_have(unchecked):
    with pytest.raises(InputError, match="unknown split 'unknown': expected one of train, test, ood"):
        TINY["sraven"].task.sample("unknown", 0)


CANARY = """
from dataclasses import dataclass, replace
from typing import ClassVar
from recombine.tasks.fuzzy_logic import FuzzyLogic


@dataclass(frozen=True, kw_only=True)
class Canary(FuzzyLogic):
    name: ClassVar[str] = "canary"

    def make_batch(self, split, stream):
        return super().make_batch("ood" if split == "train" and stream.key[3] == 0 else split, stream)
"""


@pytest.mark.parametrize("name", TASKS)
def test_no_task_of_the_package_leaks(name):
    task = TINY[name].task
    assert find_leaks(task, num_instances=60) == []


@pytest.mark.parametrize("name", TASKS)
def test_no_two_splits_share_a_composition_or_an_instance(name):
    """Except that `test` has the compositions of `train`, and that inputs of a small space repeat by chance."""
    task = TINY[name].task
    splits = [split for split in task.splits if task.split.compositions(split)]
    batches = {split: task.sample(split, 0, batch_size=64) for split in splits}
    for first in splits:
        for second in splits[splits.index(first) + 1 :]:
            if (first, second) != ("train", "test"):
                assert not set(task.split.compositions(first)) & set(task.split.compositions(second))
                assert not set(list_compositions(batches[first])) & set(list_compositions(batches[second]))
            rows = {row.numpy().tobytes() for row in batches[first].inputs.reshape(64, -1)}
            same = [row.numpy().tobytes() in rows for row in batches[second].inputs.reshape(64, -1)]
            assert sum(same) <= 6, f"{sum(same)} of 64 instances of {second} are in {first}"


def test_a_planted_leak_is_flagged_by_check(tmp_path, capsys):
    (tmp_path / "canary.py").write_text(CANARY)
    arguments = ["check", f"{tmp_path / 'canary.py'}:Canary", "--num-examples", "4", "--num-instances", "50", "-q"]
    assert run_verb(arguments) == 2
    error = capsys.readouterr().err
    assert "task 'canary' breaks its split: 50 of 50 instances of 'train'" in error
    assert "of 'ood': expected compositions of 'train' only" in error
