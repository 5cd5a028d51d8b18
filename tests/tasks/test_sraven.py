"""SRAVEN: instances obey their rules and are those of a plain generator; tokens, splits, scores, text."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.foundation.errors import InputError
from recombine.random import Stream
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.task import SRaven
from sraven_definition import obeys

TASK = SRaven()
SMALL = SRaven(num_features=2, num_values=5)


def test_tokens_of_one_puzzle():
    """Reading order, the features of a panel in their column's order, then empty queries."""
    batch = SMALL.sample("test", 4, batch_size=3)
    grid = batch.info["grids"][1]
    tokens = [value for row, column in itertools.product(range(3), range(3)) for value in grid[row, column].tolist()]
    expected = torch.zeros(18, 5)
    for token, value in enumerate(tokens[:16]):
        expected[token, value] = 1
    assert torch.equal(batch.inputs[1], expected)
    assert batch.targets[1].tolist() == tokens[16:]
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.dtype == torch.int64


def test_golden_puzzle():
    """The first training puzzle may never change."""
    batch = TASK.sample("train", 0, batch_size=1)
    assert batch.info["rules"].tolist() == [[6, 4, 4, 4]]
    assert batch.info["permutations"].tolist() == [[[2, 1, 0, 3], [0, 3, 2, 1], [0, 2, 1, 3]]]
    assert batch.info["grids"][0, -1].tolist() == [[6, 0, 0, 6], [5, 4, 4, 6], [3, 2, 4, 2]]


@settings(max_examples=25, deadline=None)
@given(
    num_features=st.integers(2, 5),
    num_values=st.integers(4, 17),
    grid_size=st.integers(2, 4),
    permuted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_instance_obeys_its_rules(num_features, num_values, grid_size, permuted, seed):
    task = SRaven(num_features=num_features, num_values=num_values, grid_size=grid_size, permuted=permuted, seed=seed)
    for split in task.splits:
        batch = task.sample(split, seed, batch_size=5)
        for row in range(len(batch)):
            grid, rules, permutations = (batch.info[name][row].tolist() for name in ("grids", "rules", "permutations"))
            multiset = task.split.compositions(split)[batch.composition[row]]
            assert tuple(sorted(rules)) == multiset == tuple(batch.latents[row].tolist())
            assert all(sorted(order) == list(range(num_features)) for order in permutations)
            assert permuted or permutations == [list(range(num_features))] * grid_size
            for feature, rule in enumerate(rules):
                places = [order.index(feature) for order in permutations]
                rows = [[panel[place] for panel, place in zip(panels, places, strict=True)] for panels in grid]
                assert obeys(rule, rows, num_values)


def draw_plainly(task: SRaven, split: str, index: int, batch_size: int):
    """The same draws made into grids by the definition, one value after another."""
    num_features, num_values = task.num_features, task.num_values
    stream = Stream(task.name, task.seed, split, index, rows=range(batch_size))
    number = stream.integers(len(task.split.compositions(split)), 1)[:, 0].tolist()
    orders = list(itertools.permutations(range(num_features)))
    chosen_orders = torch.stack(stream.digits([len(orders)] * 4), dim=1).tolist()
    sets, row_orders = list(itertools.combinations(range(num_values), 3)), list(itertools.permutations(range(3)))
    digits = torch.stack(stream.digits([num_values**2] * 3 + [len(sets)] + [6] * 3, num_features), dim=-1).tolist()
    for row in range(batch_size):
        arrangement, *columns = (orders[order] for order in chosen_orders[row])
        rules = [task.split.compositions(split)[number[row]][place] for place in arrangement]
        grid = torch.full((3, 3, num_features), -1)
        for feature, grid_row in itertools.product(range(num_features), range(3)):
            drawn, name = digits[row][feature], RULES[rules[feature]]
            first, second = divmod(drawn[grid_row], num_values)
            if name == "distribute three":
                values = [sets[drawn[3]][place] for place in row_orders[drawn[4 + grid_row]]]
            elif name in ("addition", "subtraction"):
                values = [first, second, first + second if name == "addition" else first - second]
            else:
                step = 0 if name == "constant" else int(name.split()[1])
                values = [first, first + step, first + 2 * step]
            for column in range(3):
                grid[grid_row, column, columns[column].index(feature)] = values[column] % num_values
        yield rules, columns, grid


@pytest.mark.parametrize("task", [TASK, SMALL, SRaven(num_features=3, num_values=16, seed=3)])
def test_a_plain_generator_makes_identical_instances(task):
    batch = task.sample("ood", 3, batch_size=60)
    for row, (rules, columns, grid) in enumerate(draw_plainly(task, "ood", 3, 60)):
        assert batch.info["rules"][row].tolist() == rules
        assert [tuple(order) for order in batch.info["permutations"][row].tolist()] == columns
        assert torch.equal(batch.info["grids"][row], grid)


@pytest.mark.parametrize("num_values", [4, 8])
def test_unambiguous_puzzles_have_one_answer_and_the_same_multisets(num_values):
    task, plain = SRaven(num_values=num_values, unambiguous=True), SRaven(num_values=num_values)
    batch, reference = task.sample("ood", 0, batch_size=300), plain.sample("ood", 0, batch_size=300)
    assert torch.equal(batch.composition, reference.composition)
    solution = task.solve(batch.info["grids"])
    assert (solution.num_answers == 1).all()
    assert torch.equal(solution.best, batch.targets)
    kept = ~plain.solve(reference.info["grids"]).ambiguous
    assert 0 < kept.sum() < 300
    assert torch.equal(batch.info["grids"][kept], reference.info["grids"][kept])
    assert torch.equal(batch.info["rules"].sort(dim=1).values, batch.latents)


def test_without_permutations_the_puzzles_are_the_same():
    permuted, plain = TASK.sample("ood", 1), SRaven(permuted=False).sample("ood", 1)
    assert torch.equal(permuted.info["rules"], plain.info["rules"])
    orders = permuted.info["permutations"][:, None].expand(-1, 3, -1, -1)
    assert torch.equal(plain.info["grids"].gather(3, orders), permuted.info["grids"])


def test_loss_and_metrics_by_hand():
    batch = SMALL.sample("test", 0, batch_size=2)
    logits = torch.zeros(2, 2, 5)
    for row, position in ((0, 0), (0, 1), (1, 0)):
        logits[row, position, batch.targets[row, position]] = 3.0
    logits[1, 1, (batch.targets[1, 1] + 1) % 5] = 3.0
    metrics = SMALL.metrics(logits, batch)
    assert list(metrics) == ["accuracy", "feature_accuracy"]
    assert metrics["accuracy"].numerator.tolist() == [1, 0]
    assert metrics["feature_accuracy"].numerator.tolist() == [1, 0.5]
    assert metrics["accuracy"].denominator.tolist() == [1, 1]
    e3 = torch.tensor(3.0).exp()
    right, wrong = -(e3 / (e3 + 4)).log(), -(1 / (e3 + 4)).log()
    assert SMALL.loss(logits, batch).item() == pytest.approx(((3 * right + wrong) / 4).item(), rel=1e-6)
    everything = torch.cat([torch.randn(2, 16, 5), logits], dim=1)
    assert torch.equal(SMALL.loss(everything, batch), SMALL.loss(logits, batch))
    for shape in ((2, 4), (2, 3, 5), (2, 2, 4), (2, 18, 5, 1)):
        with pytest.raises(InputError, match=r"predictions have shape .* expected \(batch, 2 or 18 tokens, 5 values\)"):
            SMALL.loss(torch.zeros(shape), batch)


def test_chance_and_simple_strategies():
    """All panels are equally likely; no strategy without the rules does better."""
    few = SRaven(num_features=2, num_values=4)
    batch = few.sample("test", 0, batch_size=4_000)
    for predictions in (few.chance(batch), *few.baselines(batch).values()):
        accuracy = few.metrics(predictions, batch)["accuracy"].numerator.mean().item()
        assert accuracy == pytest.approx(1 / 16, abs=0.02)
