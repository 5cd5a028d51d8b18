"""Sampling, for every task: batches are pure functions, any rows can be made alone, and several batches at once."""

from dataclasses import replace

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.tasks import TASKS
from recombine.tasks.sampling import Batch
from recombine.training.config import default_run
from recombine.training.loop import BatchGroups, Trainer

TINY = {name: default_run(name, "tiny") for name in TASKS}
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


@pytest.mark.parametrize("name", TASKS)
def test_rows_of_a_part_are_rows_of_the_whole(name):
    task = TINY[name].task
    for split in task.splits:
        whole, part = task.sample(split, 2, batch_size=24), task.sample(split, 2, batch_size=24, rows=range(7, 19))
        columns = (whole.inputs, whole.targets, whole.latents)
        info = {key: column[7:19] for key, column in whole.info.items()}
        assert_same(name, part, Batch(*(column[7:19] for column in columns), info))


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default_type(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_does_not_depend_on_the_default_type(name, default_type):
    task = TINY[name].task
    for split in task.splits:
        found = replace(task).sample(split, 3, batch_size=6)
        torch.set_default_dtype(torch.float32)
        expected = replace(task).sample(split, 3, batch_size=6)
        torch.set_default_dtype(default_type)
        assert torch.equal(found.inputs, expected.inputs)
        assert torch.equal(found.targets, expected.targets)
        assert (found.inputs.dtype, found.targets.dtype) == (expected.inputs.dtype, expected.targets.dtype)


@pytest.mark.parametrize("name", TASKS)
def test_several_batches_at_once_are_the_batches_alone(name):
    task = TINY[name].task
    for split, rows in (("train", None), ("train", range(3, 7)), ("ood", range(2, 6))):
        batches = task.sample_many(split, 13, 5, batch_size=8, rows=rows)
        assert len(batches) == 5
        for number, batch in enumerate(batches):
            assert_same(name, batch, task.sample(split, 13 + number, batch_size=8, rows=rows))


@pytest.mark.parametrize("name", TASKS)
def test_no_batches_at_once_and_batches_without_rows(name):
    task = TINY[name].task
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


def test_a_group_of_batches_is_a_power_of_two_within_a_budget():
    task = TINY["hyperteacher"].task
    numbers = task.train_length * task.input_dim
    assert task.count_batches_at_once(1) == task.max_batches_at_once == 16
    assert task.count_batches_at_once(2**20 // numbers) == 1
    assert task.count_batches_at_once(2**20) == 1
    assert task.count_batches_at_once(2**20 // (7 * numbers)) == 4


@pytest.mark.parametrize("name", TASKS)
def test_batches_join_and_divide(name):
    task = TINY[name].task
    batches = [task.sample("train", index, batch_size=4) for index in range(3)]
    joined = Batch.join(batches)
    assert len(joined) == 12
    for part, batch in zip(joined.divide(4), batches, strict=True):
        assert torch.equal(part.inputs, batch.inputs)
        assert torch.equal(part.targets, batch.targets)
        assert torch.equal(part.latents, batch.latents)
        assert part.info.keys() == batch.info.keys()
        assert all(torch.equal(part.info[key], batch.info[key]) for key in batch.info)
    parts = joined.divide(5)
    assert [len(part) for part in parts] == [5, 5, 2]
    assert torch.equal(Batch.join(parts).inputs, joined.inputs)


def test_nothing_to_join():
    with pytest.raises(InputError, match="no batches to join"):
        Batch.join([])


def test_a_split_that_the_task_does_not_have(unchecked):
    with pytest.raises(InputError, match="unknown split 'unknown': expected one of train, test, ood"):
        TINY["sraven"].task.sample("unknown", 0)
