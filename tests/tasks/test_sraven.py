"""SRAVEN: the definition, the tokens, the splits, the scores, the optimum."""

import itertools
from collections import Counter

import pandas
import pytest
import torch

from recombine.compositions import all_multisets
from recombine.foundation.errors import InputError
from recombine.integrations.exchange.export import make_rows, write_table
from recombine.tasks.sraven.counts import TABLE_A2, estimate_ambiguity
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.task import SRaven
from recombine.training.score import score_references

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


def test_references_can_be_scored():
    references = score_references(SMALL, num_instances=500)
    for split in ("test", "ood"):
        assert references[split]["accuracy"]["ceiling"] > 0.8 > references[split]["accuracy"]["chance"]


def test_ambiguity_agrees_with_what_was_measured():
    """A quarter of the puzzles are ambiguous by the wording of the paper, a hundredth of them by the count of table A2."""
    found = estimate_ambiguity(num_instances=4096)
    assert found.ambiguous.value == pytest.approx(0.242, abs=4 * found.ambiguous.standard_error)
    assert found.ambiguous.standard_error == pytest.approx((0.242 * 0.758 / 4096) ** 0.5, rel=0.05)
    printed = TABLE_A2[4, 8]
    difference = found.ambiguous_everywhere.value - printed.value
    assert abs(difference) < 4 * (found.ambiguous_everywhere.standard_error + printed.standard_error)
    assert found.agnostic.value == pytest.approx(0.929, abs=4 * found.agnostic.standard_error)
    assert found.accuracy.value == pytest.approx(found.agnostic.value, abs=2 * found.accuracy.standard_error)


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


def test_hugging_face_datasets_loads_the_export(tmp_path):
    datasets = pytest.importorskip("datasets")
    write_table(make_rows(SMALL, ["ood"], 10), tmp_path / "puzzles.parquet")
    rows = datasets.load_dataset("parquet", data_files=str(tmp_path / "puzzles.parquet"), cache_dir=str(tmp_path))
    assert rows["train"][0]["target"] == SMALL.sample("ood", 0, batch_size=1000, rows=range(1)).targets[0].tolist()


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
