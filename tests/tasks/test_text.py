"""Text forms of tasks: prompts, parsers, answers as predictions."""

import re

import pytest
import torch

import recombine
from recombine.cli.main import run as run_verb
from recombine.tasks.fuzzy_logic import evaluate_function
from recombine.training.score import score_references

RAVEN = recombine.SRaven(num_features=2, num_values=4)
TASKS = {
    "sraven": RAVEN,
    "fuzzy_logic": recombine.FuzzyLogic(num_variables=3, num_examples=6, held_out=0.4),
}


@pytest.mark.parametrize("name", TASKS)
def test_right_answers_are_right_and_missing_ones_wrong(name):
    form = TASKS[name].text_form()
    batch = form.task.sample("ood", 0, batch_size=40)
    texts = [form.write_answers(batch, row)[0] for row in range(40)]
    for parser in ("strict", "lenient"):
        assert [form.parse(f" {text}\n", parser) for text in texts] == texts
    for ratio in form.task.metrics(form.predict(texts, batch), batch).values():
        assert (ratio.numerator.sum() / ratio.denominator.sum()).item() == pytest.approx(1, abs=1e-6)
    missing = form.task.metrics(form.predict([None] * 40, batch), batch)
    headline = next(iter(missing.values()))
    assert headline.numerator.sum() == 0


@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_has_instructions_examples_and_a_question(name):
    form = TASKS[name].text_form()
    batch = form.task.sample("test", 0, batch_size=2)
    examples = form.write_examples(2)
    prompt = form.write_prompt(batch, 0, examples=examples)
    assert prompt.startswith(form.instructions)
    assert prompt.endswith("\nAnswer:")
    assert prompt.count("\nAnswer: ") == 2
    assert form.write_examples(0) == []
    trained = form.task.sample("train", 0, batch_size=2)
    assert form.write_answers(trained, 1)[0] == examples[1].rpartition("Answer: ")[2]
    thinking = form.write_prompt(batch, 0, reasoning=True)
    assert "Think first" in thinking
    assert thinking.endswith(form.write_question(batch, 0))


@pytest.mark.parametrize(
    ("name", "response", "strict", "lenient"),
    [
        ("sraven", " 3 1", "3 1", "3 1"),
        ("sraven", "Answer: 3 1\n", "3 1", "3 1"),
        ("sraven", "3, 1", "3 1", "3 1"),
        ("sraven", "The last panel is 2 2, no: **3, 1**.", None, "3 1"),
        ("sraven", "3 1 2", None, None),
        ("sraven", "03 1", None, None),
        ("sraven", "", None, None),
        ("fuzzy_logic", "f = 0.25 or 0.31", None, "0.31"),
        ("fuzzy_logic", "0.3", None, None),
    ],
)
def test_parsers(name, response, strict, lenient):
    form = TASKS[name].text_form()
    assert form.parse(response, "strict") == strict
    assert form.parse(response, "lenient") == lenient


def test_the_written_puzzle_hides_the_answer():
    batch = RAVEN.sample("ood", 0, batch_size=1)
    lines = RAVEN.text_form().write_question(batch, 0).splitlines()
    assert lines[-1].endswith("| ? ?")
    shown = [[[int(each) for each in panel.split()] for panel in line[7:].split(" | ")] for line in lines[:-1]]
    assert shown == batch.info["grids"][0, :-1].tolist()


def test_a_number_out_of_range_is_wrong():
    form, batch = RAVEN.text_form(), RAVEN.sample("ood", 0, batch_size=1)
    first = int(batch.targets[0, 0])
    metrics = RAVEN.metrics(form.predict([f"{first} 99999999999"], batch), batch)
    assert metrics["accuracy"].numerator.item() == 0
    assert metrics["feature_accuracy"].numerator.item() == 0.5


def test_the_printed_numbers_determine_the_printed_answer():
    form = TASKS["fuzzy_logic"].text_form()
    batch = form.task.sample("ood", 0, batch_size=200)
    for row in range(200):
        query = form.write_question(batch, row).splitlines()[-1]
        x = [round(100 * float(value)) for value in re.findall(r"x\d=([\d.]+)", query)]
        terms = []
        for term in batch.latents[row].tolist():
            bits = f"{term:03b}"
            terms.append(min(100 - v if bit == "1" else v for v, bit in zip(x, bits, strict=True)))
        assert form.write_answers(batch, row) == [f"{max(terms) / 100:.2f}"]


def test_the_ceiling_of_rounded_answers_is_exact():
    task = recombine.FuzzyLogic(num_variables=3, num_examples=2, held_out=0.4, decimals=1)
    batch = task.sample("ood", 0, batch_size=100)
    for split, compositions in (("ood", task.split.ood), (None, task.all_compositions.tolist())):
        best = task.best_predictions(batch, split=split, metric="accuracy")
        for row in range(100):
            values = []
            for composition in compositions:
                exact = evaluate_function(batch.inputs[row : row + 1, :, :-1], torch.tensor([composition]))[0]
                rounded = (10 * exact).round().int().tolist()
                if rounded[0] == round(10 * batch.inputs[row, 0, -1].item()):
                    values.append(rounded[1])
            count = max(values.count(value) for value in values)
            assert values.count(round(10 * best[row].item())) == count
    references = score_references(task, num_instances=300)["ood"]["accuracy"]
    assert references["chance"] <= references["agnostic"] <= references["ceiling"] <= 1


def test_what_has_no_text_form_says_so(capsys):
    assert run_verb(["export", "hyperteacher", "--format", "text", "-o", "nowhere"]) == 2
    assert "task 'hyperteacher' has no text form: expected a task with one" in capsys.readouterr().err
    for task in (recombine.FuzzyLogic, recombine.InContext):
        with pytest.raises(recombine.InputError, match="decimals is 9: expected 0 to 4"):
            task(decimals=9)
