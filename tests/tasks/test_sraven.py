"""SRAVEN: instances obey their rules and are those of a plain generator; tokens, splits, scores, text."""

import itertools

import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("task", [SRaven(num_values=6, unambiguous=True), SRaven(num_features=8)])
def test_rows_of_a_part_are_rows_of_the_whole(task):
    whole, part = task.sample("test", 2, batch_size=40), task.sample("test", 2, batch_size=40, rows=range(11, 29))
    assert torch.equal(whole.inputs[11:29], part.inputs)
    for name, column in whole.info.items():
        assert torch.equal(column[11:29], part.info[name])


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
    assert ((table["num_answers"] > 1) == table["ambiguous"]).all()
    assert table["posterior_of_target"].between(0, 1).all()
    assert (table["posterior_of_target"][~table["ambiguous"]] > 1 - 1e-9).all()
    assert set(map(tuple, table["rules"].map(sorted))) <= set(SMALL.split.ood)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_features": 1}, "held-out fraction is 0.25, which leaves 6 training compositions: expected at least 8"),
        ({"num_values": 2}, "num_values is 2: expected a whole number of at least 3"),
        ({"num_values": 4, "grid_size": 5}, "num_values is 4: expected a whole number of at least 5"),
        ({"grid_size": 1}, "grid size is 1: expected at least 2"),
        ({"num_values": 1000}, "num_values is 1000 at grid size 3, which gives .* expected at most 2097152"),
        ({"held_out": 0.997}, "held-out fraction is 0.997"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        SRaven(**settings)
