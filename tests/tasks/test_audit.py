"""The audit of instances: a task whose training secretly holds held-out compositions is found out."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from recombine import FuzzyLogic
from recombine.cli.main import run as run_verb
from recombine.tasks import TASKS
from recombine.tasks.sampling import find_leaks, list_compositions

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
    task = TASKS[name].preset("tiny").task
    assert find_leaks(task, num_instances=60) == []


@pytest.mark.parametrize("name", TASKS)
def test_no_two_splits_share_a_composition_or_an_instance(name):
    """Except that `test` has the compositions of `train`, and that inputs of a small space repeat by chance."""
    task = TASKS[name].preset("tiny").task
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


def test_a_leak_says_where_the_composition_belongs():
    @dataclass(frozen=True, kw_only=True)
    class Mixed(FuzzyLogic):
        name: ClassVar[str] = "mixed"

        def make_batch(self, split, stream):
            return super().make_batch("unknown" if split == "ood" else split, stream)

    (leak,) = find_leaks(Mixed(num_examples=4), num_instances=20)
    assert (leak.split, leak.num_foreign, leak.belongs_to) == ("ood", 20, "unknown")
