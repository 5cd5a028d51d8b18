"""SRAVEN: instances obey their rules and are those of a plain generator; tokens, splits, scores, text."""

import itertools
from collections import Counter

import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.compositions import all_multisets
from recombine.foundation.errors import InputError
from recombine.integrations.exchange.export import make_rows, write_table
from recombine.random import Stream
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.task import SRaven
from sraven_definition import obeys

TASK = SRaven()
SMALL = SRaven(num_features=2, num_values=5)
NUM_SAMPLED, BLOCK = 1_000_000, 50_000


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


def test_sizes_and_splits():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_read) == (8, 8, 36, 4)
    assert (len(TASK.split.train), len(TASK.split.ood)) == (248, 82)
    assert len(all_multisets(len(RULES), 4)) == 330
    certificate = TASK.split.certificate
    assert certificate.overlap == 0
    assert certificate.connected
    assert certificate.min_coverage > 0


@pytest.mark.parametrize("task", [TASK, SRaven(num_values=6, unambiguous=True), SRaven(num_features=8)])
def test_rows_of_a_part_are_rows_of_the_whole(task):
    whole, part = task.sample("test", 2, batch_size=40), task.sample("test", 2, batch_size=40, rows=range(11, 29))
    assert torch.equal(whole.inputs[11:29], part.inputs)
    assert torch.equal(whole.targets[11:29], part.targets)
    for name, column in whole.info.items():
        assert torch.equal(column[11:29], part.info[name])
    assert not torch.equal(whole.inputs, task.sample("test", 3, batch_size=40).inputs)


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
            assert obeys(rule, rows, num_values)


def test_without_permutations_the_puzzles_are_the_same():
    permuted, plain = TASK.sample("ood", 1), SRaven(permuted=False).sample("ood", 1)
    assert torch.equal(permuted.info["rules"], plain.info["rules"])
    orders = permuted.info["permutations"][:, None].expand(-1, 3, -1, -1)
    assert torch.equal(plain.info["grids"].gather(3, orders), permuted.info["grids"])


def test_multisets_that_are_always_ambiguous_are_named(monkeypatch):
    monkeypatch.setattr("recombine.tasks.sraven.task.MAX_REDRAWS", 2)
    with pytest.raises(InputError, match=r"no unambiguous puzzle among 8 with the rules .*, num_values is 3 at grid"):
        SRaven(num_values=3, unambiguous=True).sample("train", 0)


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


def test_the_agnostic_optimum_matches_the_solver_and_beats_chance():
    batch = TASK.sample("ood", 0, batch_size=1000)
    solution = TASK.solve(batch.info["grids"])
    agnostic = TASK.best_predictions(batch, split=None, metric="accuracy")
    assert torch.equal(agnostic.argmax(dim=-1), solution.best)
    assert (solution.probability_of(batch.targets) > 0).all()  # the true answer always fits
    accuracy = {
        name: TASK.metrics(predictions, batch)["accuracy"].numerator.mean().item()
        for name, predictions in {
            "agnostic": agnostic,
            "chance": TASK.chance(batch),
            **TASK.baselines(batch),
        }.items()
    }
    assert accuracy["agnostic"] == pytest.approx(0.92, abs=0.03)
    assert accuracy["agnostic"] == pytest.approx(solution.probability.mean().item(), abs=0.03)
    for name in ("chance", "most frequent answer", "panel to the left"):
        assert accuracy[name] < 0.02
    few = SRaven(num_features=2, num_values=4)
    batch = few.sample("test", 0, batch_size=4000)
    right = few.metrics(few.chance(batch), batch)["accuracy"].numerator
    assert right.mean().item() == pytest.approx(1 / 16, abs=0.015)


def test_render_and_describe():
    assert TASK.describe((0, 5, 5, 7)) == "constant + addition + addition + distribute three"
    batch = TASK.sample("ood", 0, batch_size=32)
    solution = TASK.solve(batch.info["grids"])
    row = int(solution.num_answers.argmax())
    text = TASK.render(batch, row)
    answers = text.split("every answer that fits, with its posterior:\n")[1].splitlines()
    assert len(answers) == solution.num_answers[row] > 1
    assert sum("the true one" in line for line in answers) == 1
    assert " ".join(map(str, batch.targets[row].tolist())) in next(line for line in answers if "true" in line)
    assert text.count("? ? ? ?") == 1
    assert all(RULES[rule] in text for rule in batch.latents[row].tolist())


def test_export_loads_with_pandas(tmp_path):
    write_table(make_rows(SMALL, ["ood"], 30), tmp_path / "puzzles.parquet")
    table = pandas.read_parquet(tmp_path / "puzzles.parquet")
    batch = SMALL.sample("ood", 0, batch_size=1000, rows=range(30))
    assert len(table) == 30
    assert [list(panel) for panel in table["panels"][0]] == batch.info["grids"][0].flatten(0, 1)[:-1].tolist()
    assert list(table["target"][3]) == batch.targets[3].tolist()
    assert [list(order) for order in table["permutations"][3]] == batch.info["permutations"][3].tolist()
    assert table["ambiguous"].dtype == bool
    assert ((table["num_answers"] > 1) == table["ambiguous"]).all()
    assert table["posterior_of_target"].between(0, 1).all()
    assert (table["posterior_of_target"][~table["ambiguous"]] > 1 - 1e-9).all()
    assert Counter(map(tuple, table["rules"].map(sorted))).keys() <= set(SMALL.split.ood)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_features": 0}, "num_features is 0: expected a whole number of at least 1"),
        ({"num_features": 1}, "held-out fraction is 0.25, which leaves 6 training compositions: expected at least 8"),
        ({"num_values": 2}, "num_values is 2: expected a whole number of at least 3"),
        ({"num_values": 4, "grid_size": 5}, "num_values is 4: expected a whole number of at least 5"),
        ({"grid_size": 1}, "grid size is 1: expected at least 2"),
        ({"num_values": 1000}, "num_values is 1000 at grid size 3, which gives .* expected at most 2097152"),
        ({"held_out": 0.997}, "held-out fraction is 0.997"),
        ({"held_out": 0.0}, "held-out fraction is 0.0: expected a number strictly between 0 and 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        SRaven(**settings)


@pytest.mark.parametrize("shape", [(128, 4), (128, 5, 8), (128, 4, 7), (128, 36, 8, 1)])
def test_bad_predictions(shape):
    batch = TASK.sample("train", 0)
    with pytest.raises(InputError, match=r"predictions have shape .* expected \(batch, 4 or 36 tokens, 8 values\)"):
        TASK.loss(torch.zeros(shape), batch)


def test_bad_split(unchecked):
    with pytest.raises(InputError, match="unknown split 'unknown': expected one of train, test, ood"):
        TASK.sample("unknown", 0)
