"""Golden numbers: batches, initial parameters and losses that may not move while the version of their class stays.

A finished run is found by its configuration and the versions of its task, its model and the training loop. Whoever changes
numbers must therefore raise a version; this test fails when somebody forgets. After raising it, record the new numbers:

    python tests/test_golden.py --record

Sums are compared with a tolerance, since the last bits of floating-point sums differ between processors. Initial parameters
come from torch's generator and may change with its version, so those of networks are compared for the pinned version only.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recombine.attention.dispatch import use_kernel
from recombine.models.base import build_model, models_by_kind
from recombine.tasks import TASKS
from recombine.tasks.base import Task
from recombine.training.config import TRAINING_VERSION, RunConfig, default_run
from recombine.training.trainer import Trainer

FILE = Path(__file__).parents[1] / "golden.json"
TEXT = Path(__file__).parents[1] / "text"
PINNED_TORCH = re.findall(r"^torch==([\d.]+)", FILE.parent.with_name("constraints.txt").read_text(), re.MULTILINE)[0]
TOLERANCE = 1e-5  # of the root mean square, for means over a tensor
LOSS_TOLERANCE = 1e-4  # of losses after a few steps, which add up differences
# sums of ratios to the variance of 16 samples, some of them tiny: 1.1e-4 between two processors
RATIO_TOLERANCE = 5e-4
RATIOS = {"task hyperteacher": "train r2 of chance"}
BATCH_SIZE, TRAINING_BATCH_SIZE, NUM_STEPS = 16, 4, 3
TASKS_OF_MODELS = dict.fromkeys(("mlp", "hypernetwork", "task_transformer"), "hyperteacher") | {
    "transformer": "fuzzy_logic",
    "hypernetwork_transformer": "in_context",
}
Numbers = dict[str, dict[str, float] | list[float]]


def summarise(tensor: Tensor) -> dict[str, float]:
    """Means that notice a change of any entry, and of their order."""
    flat = tensor.detach().double().flatten()
    weights = torch.linspace(0.5, 1.5, len(flat), dtype=torch.float64).cos()
    return {
        "count": len(flat),
        "mean": flat.mean().item(),
        "root_mean_square": flat.square().mean().sqrt().item(),
        "weighted_mean": (flat * weights).mean().item(),
    }


def fix_text(task: Task) -> Task:
    """A task whose text depends on the machine, with the text in `tests/text` instead."""
    changes: dict[str, Any] = {"text": (str(TEXT),)}
    return replace(task, **changes) if hasattr(task, "text") else task


def describe_task(task: Task) -> Numbers:
    numbers: Numbers = {}
    for split in task.splits:
        for index in (0, 5):
            batch = task.sample(split, index, batch_size=BATCH_SIZE)
            columns = {"inputs": batch.inputs, "targets": batch.targets, "latents": batch.latents, **batch.info}
            numbers |= {f"{split} {index} {name}": summarise(column) for name, column in columns.items()}
        chance = task.chance(batch)
        numbers[f"{split} loss of chance"] = [task.loss(chance, batch).item()]
        for name, ratio in task.metrics(chance, batch).items():
            numbers[f"{split} {name} of chance"] = [each.sum().item() for each in ratio]
    return numbers


def describe_preset(task: type[Task]) -> Numbers:
    return describe_task(fix_text(task.preset("tiny").task))


def choose_run(kind: str) -> RunConfig:
    """A small run with a kind of model; by name, so that another task leaves it as it is."""
    name = TASKS_OF_MODELS.get(kind) or min(name for name, task in TASKS.items() if kind in task.models)
    run = default_run(name, "tiny", kind)
    narrow = {"hidden_dim": 16} if kind == "mlp" else {}
    return replace(run, task=fix_text(run.task), model=replace(run.model, **narrow))


def describe_model(kind: str) -> Numbers:
    run = choose_run(kind)
    model = build_model(run.model, run.task, seed=0)
    inputs = run.task.sample("test", 0, batch_size=4).inputs
    with use_kernel("reference"):
        outputs = model(inputs)
    return {**{name: summarise(value) for name, value in model.state_dict().items()}, "outputs": summarise(outputs)}


def describe_training(name: str) -> Numbers:
    run = default_run(name, "tiny")
    training = replace(run.training, batch_size=TRAINING_BATCH_SIZE, warmup_steps=0)
    task = fix_text(run.task)
    trainer = Trainer(build_model(run.model, task, seed=0), task, training, "cpu")
    with use_kernel("reference"):
        return {"losses": [trainer.advance().item() for _ in range(NUM_STEPS)]}


def list_entries() -> dict[str, tuple[dict[str, int], Callable[[], Numbers]]]:
    """For each entry the versions that it stands under, by the name to raise, and what computes it."""
    entries: dict[str, tuple[dict[str, int], Callable[[], Numbers]]] = {}
    for name, task in TASKS.items():
        versions = {f"{task.__name__}.version": task.version}
        entries[f"task {name}"] = (versions, partial(describe_preset, task))
        model = models_by_kind()[task.models[0]]
        versions = {**versions, f"{model.__name__}.version": model.version, "TRAINING_VERSION": TRAINING_VERSION}
        entries[f"training {name}"] = (versions, partial(describe_training, name))
    for kind, config in models_by_kind().items():
        entries[f"model {kind}"] = (
            {f"{config.__name__}.version": config.version},
            partial(describe_model, kind),
        )
    return entries


def compare(found: Numbers, expected: Numbers, ratio: str | None = None) -> str | None:
    """The first number that differs, in words. `ratio` names one that may differ more."""
    if found.keys() != expected.keys():
        return f"{sorted(found.keys() ^ expected.keys())[0]!r} is new or gone"
    for name, value in found.items():
        other = expected[name]
        if isinstance(value, dict):
            assert isinstance(other, dict)
            limit = TOLERANCE * value["root_mean_square"]
            same = all(abs(value[key] - other[key]) <= limit for key in value)
        else:
            limit = RATIO_TOLERANCE if name == ratio else LOSS_TOLERANCE
            pairs = zip(value, other, strict=True)
            same = all(math.isclose(one, two, rel_tol=limit, abs_tol=limit) for one, two in pairs)
        if not same:
            return f"{name!r} is {value}, was {other}"
    return None


def check(entry: str, versions: dict[str, int], found: Numbers, recorded: dict) -> None:
    """Fail with what to do."""
    record = "run `python tests/test_golden.py --record`"
    if entry not in recorded:
        pytest.fail(f"{entry} has no golden numbers: {record}")
    if recorded[entry]["versions"] != versions:
        pytest.fail(f"the versions of {entry} are {versions}, recorded {recorded[entry]['versions']}: {record}")
    if difference := compare(found, recorded[entry]["numbers"], RATIOS.get(entry)):
        pytest.fail(f"numbers of {entry} changed: raise {' or '.join(versions)} and {record} ({difference})")


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("entry", list_entries())
def test_numbers_have_not_moved(entry, recorded):
    if not entry.startswith("task ") and torch.__version__.partition("+")[0] != PINNED_TORCH:
        pytest.skip(f"initial parameters are recorded for torch {PINNED_TORCH}")
    versions, describe = list_entries()[entry]
    check(entry, versions, describe(), recorded)


def test_every_golden_entry_is_checked(recorded):
    assert recorded.keys() == list_entries().keys()


def test_a_changed_number_is_noticed(monkeypatch, recorded):
    """Fuzzy logic with `and` of all terms instead of `or`: what once went unnoticed."""
    versions, describe = list_entries()["task fuzzy_logic"]
    monkeypatch.setattr(Tensor, "amax", Tensor.amin)
    with pytest.raises(pytest.fail.Exception, match=r"changed: raise FuzzyLogic\.version and run .*--record"):
        check("task fuzzy_logic", versions, describe(), recorded)


def test_another_version_asks_for_a_record(recorded):
    _, describe = list_entries()["model mlp"]
    with pytest.raises(pytest.fail.Exception, match=r"the versions of model mlp are .*: run .*--record"):
        check("model mlp", {"MLPConfig.version": 99}, describe(), recorded)


def test_the_summary_notices_order_and_single_entries():
    x = torch.arange(1000.0)
    assert compare({"x": summarise(x.flip(0))}, {"x": summarise(x)})
    changed = torch.ones(1000)
    changed[500] += 0.1
    assert compare({"x": summarise(changed)}, {"x": summarise(torch.ones(1000))})
    assert compare({"x": summarise(x * (1 + 1e-7))}, {"x": summarise(x)}) is None
    assert compare({"loss": [1.0002]}, {"loss": [1.0]})
    assert compare({"loss": [1.0002]}, {"loss": [1.0]}, ratio="loss") is None


def main() -> None:
    if sys.argv[1:] != ["--record"]:
        sys.exit("expected --record: writes the numbers of this version to tests/golden.json")
    entries = {
        entry: {"versions": versions, "numbers": describe()} for entry, (versions, describe) in list_entries().items()
    }
    lines = [f"{json.dumps(entry)}: {json.dumps(value)}" for entry, value in sorted(entries.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
