"""SRAVEN instances: they obey their rules, a plain generator makes the same ones, and what should be uniform is."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.random import Stream
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.task import SRaven

TASK = SRaven()


SMALL = SRaven(num_features=2, num_values=5)


NUM_SAMPLED, BLOCK = 1_000_000, 50_000


def obeys(rule: str, rows: list[list[int]], num_values: int) -> bool:
    """Whether the rows of one feature follow a rule, by its words in the paper."""
    if rule == "distribute three":
        return len(set(rows[0])) == len(rows) and all(sorted(row) == sorted(rows[0]) for row in rows)
    if rule == "constant" or rule.startswith("progression"):
        step = 0 if rule == "constant" else int(rule.split()[1])
        return all((b - a - step) % num_values == 0 for row in rows for a, b in itertools.pairwise(row))
    sign = {"addition": 1, "subtraction": -1}[rule]
    return all((row[0] + sign * sum(row[1:-1]) - row[-1]) % num_values == 0 for row in rows)


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
                assert obeys(RULES[rule], rows, num_values)


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


@pytest.fixture(scope="module")
def sampled():
    """A million instances in all: number of the multiset recomputed from the rules, and of each whole puzzle, by split."""
    place, sampled = 8 ** torch.arange(4), {}
    factors = Stream("hash of a puzzle", rows=range(36)).bits()  # sums wrap around modulo 2^64
    for split in TASK.splits:
        blocks = []
        for index in range(NUM_SAMPLED // len(TASK.splits) // BLOCK + 1):
            batch = TASK.sample(split, index, batch_size=BLOCK)
            multiset = (batch.info["rules"].sort(dim=1).values * place).sum(dim=1)
            puzzle = (batch.info["grids"].flatten(1) * factors).sum(dim=1)
            listed = (torch.tensor(TASK.split.compositions(split)) * place).sum(dim=1)
            assert torch.equal(listed[batch.composition], multiset)
            blocks.append(torch.stack([multiset, puzzle]))
        sampled[split] = torch.cat(blocks, dim=1)
    return sampled


def test_held_out_multisets_never_occur_in_a_million_instances(sampled):
    assert sum(each.shape[1] for each in sampled.values()) >= NUM_SAMPLED
    place = 8 ** torch.arange(4)
    held_out = (torch.tensor(TASK.split.ood) * place).sum(dim=1)
    trained = (torch.tensor(TASK.split.train) * place).sum(dim=1)
    assert torch.equal(sampled["train"][0].unique(), trained.sort().values)  # and every other one does occur
    assert torch.equal(sampled["test"][0].unique(), trained.sort().values)
    assert torch.equal(sampled["ood"][0].unique(), held_out.sort().values)


def test_test_instances_do_not_repeat_training_ones(sampled):
    """The multiset with fewest puzzles has 8^12, so that chance lets none of a third of a million recur."""
    training, test = sampled["train"][1], sampled["test"][1]
    assert not torch.isin(test, training).any()
    assert len(training.unique()) == len(training)


def chi_square(numbers: torch.Tensor, num_outcomes: int) -> float:
    """In standard deviations from its mean, when outcomes are equally likely."""
    counts = torch.bincount(numbers.flatten(), minlength=num_outcomes).double()
    assert len(counts) == num_outcomes
    value = ((counts - counts.mean()).square() / counts.mean()).sum().item()
    return (value - (num_outcomes - 1)) / (2 * (num_outcomes - 1)) ** 0.5


def test_what_should_be_uniform_is():
    batch = TASK.sample("train", 0, batch_size=200_000)
    grids, rules, permutations = (batch.info[name] for name in ("grids", "rules", "permutations"))
    assert abs(chi_square(batch.composition, 248)) < 4
    place = 4 ** torch.arange(4)
    orders = (permutations * place).sum(dim=-1)
    known = orders.unique()
    assert len(known) == 24
    pairs = torch.searchsorted(known, orders[:, 0].contiguous()) * 24 + torch.searchsorted(
        known, orders[:, 2].contiguous()
    )
    assert abs(chi_square(pairs, 576)) < 4
    for row, column, position in itertools.product(range(3), range(3), range(4)):
        assert abs(chi_square(grids[:, row, column, position], 8)) < 5
    assert abs(chi_square((batch.targets * 8 ** torch.arange(4)).sum(dim=1), 4096)) < 4
    several = (batch.latents == torch.tensor([0, 1, 5, 7])).all(dim=1)
    if several.any():  # one of 24 arrangements of four different rules
        arrangement = (torch.searchsorted(torch.tensor([0, 1, 5, 7]), rules[several]) * place).sum(dim=1)
        assert abs(chi_square(torch.searchsorted(known, arrangement), 24)) < 5


def test_rows_of_a_rule_are_uniform():
    """Sets and orders of distribute, free values of addition; over puzzles without permutations."""
    batch = SRaven(num_features=2, num_values=5, permuted=False).sample("train", 0, batch_size=100_000)
    rows = batch.info["grids"].permute(0, 3, 1, 2)  # (batch, feature, row, column)
    place = 5 ** torch.arange(3)
    for rule, num_rows in ((5, 25), (7, 60), (0, 5), (3, 5)):
        codes = (rows[batch.info["rules"] == rule] * place).sum(dim=-1)
        known = codes.unique()
        assert len(known) == num_rows
        assert abs(chi_square(torch.searchsorted(known, codes), num_rows)) < 5 * (2 if rule == 7 else 1)
    distribute = rows[batch.info["rules"] == 7].sort(dim=-1).values
    assert torch.equal(distribute[:, 0], distribute[:, 2])
    sets = (distribute[:, 0] * place).sum(dim=-1)
    assert abs(chi_square(torch.searchsorted(sets.unique(), sets), 10)) < 4


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
    for row in range(50):
        grid, rules, orders = (batch.info[name][row].tolist() for name in ("grids", "rules", "permutations"))
        for feature, rule in enumerate(rules):
            rows = [[panels[c][orders[c].index(feature)] for c in range(3)] for panels in grid]
            assert obeys(RULES[rule], rows, num_values)
