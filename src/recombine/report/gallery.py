"""Instances of unseen combinations that a run gets right and wrong: the first few of each, as the stream brings them.

Predictions are not stored with a run, so the network is rebuilt from its checkpoint and asked here: a few dozen instances, in
about the time it takes to load. What cannot be rebuilt or has no picture is a sentence instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from markupsafe import Markup
from torch import Tensor

from recombine.errors import InputError
from recombine.report.gallery_pictures import draw_answer, draw_grid, draw_values
from recombine.report.runs import ReportRun
from recombine.run import load_run
from recombine.tasks import Batch, Task
from recombine.tasks.fuzzy_logic.task import FuzzyLogic
from recombine.tasks.sraven.picture import CHANNELS, SHAPES
from recombine.tasks.sraven.rules import RULES
from recombine.tasks.sraven.task import SRaven

NUM_ASKED = 64
NUM_SHOWN = 4  # of those right, and of those wrong
TOLERANCE = 0.05  # of a continuous answer that counts as right


@dataclass(frozen=True, kw_only=True)
class Card:
    """One instance: a picture, the composition behind it, and what there is to say about the answer."""

    picture: Markup
    answers: Markup
    composition: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The cards of a run, and how often it was right among those asked."""

    kind: str
    right: list[Card]
    wrong: list[Card]
    num_right: int
    num_asked: int
    meaning: str  # of right


def read_gallery(run: ReportRun) -> Gallery | None:
    """None where there is no checkpoint to ask."""
    if not (run.directory.path / "checkpoint.safetensors").exists():
        return None
    try:
        return make_gallery(run)
    except InputError:
        raise
    except Exception as error:  # whatever is wrong with a network or a task, the report is made
        raise InputError(
            f"its network could not be asked ({type(error).__name__}): expected a run of this version"
        ) from None


def make_gallery(run: ReportRun) -> Gallery:
    try:
        _, config, model = load_run(run.directory.path, "cpu")
    except InputError as error:
        raise InputError(str(error).replace(str(run.directory.path), "the run")) from None
    if config.task.name not in GALLERIES:
        raise InputError(f"task {config.task.name!r} has no pictures: expected one of {', '.join(GALLERIES)}")
    judge, draw, meaning = GALLERIES[config.task.name]
    batch = config.task.sample("ood", 0, batch_size=NUM_ASKED)
    with torch.no_grad():
        answers, right = judge(config.task, model(batch.inputs), batch)
    chosen = [torch.nonzero(right == wanted)[:NUM_SHOWN, 0].tolist() for wanted in (True, False)]
    cards = [[draw(config.task, batch, row, answers[row]) for row in rows] for rows in chosen]
    return Gallery(
        kind=config.task.name,
        right=cards[0],
        wrong=cards[1],
        num_right=int(right.sum()),
        num_asked=NUM_ASKED,
        meaning=meaning,
    )


def _judge_puzzles(task: SRaven, predictions: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    answers = task.read(predictions).argmax(dim=-1)
    return answers, (answers == batch.targets).all(dim=1)


def _draw_puzzle(task: SRaven, batch: Batch, row: int, answer: Tensor) -> Card:
    if task.num_values > len(SHAPES):
        raise InputError(f"num_values is {task.num_values}: expected at most {len(SHAPES)}, the shapes there are")
    grid, truth, given = batch.info["grids"][row], batch.targets[row].tolist(), answer.tolist()
    solution = task.solve(grid[None])
    num_answers = int(solution.num_answers[0])
    remarks = []
    if given != truth:
        names = [*CHANNELS, *(f"strip {number}" for number in range(1, task.num_features))]
        wrong = [names[position] for position in range(len(truth)) if given[position] != truth[position]]
        remarks.append(f"wrong in {' and '.join(wrong) if len(wrong) < 3 else ', '.join(wrong)}")
    if num_answers > 1:
        fits = given in solution.answers.tolist()
        also = "; the network’s is one of them" if fits and given != truth else ""
        remarks.append(f"ambiguous: {num_answers} answers fit{also}")
    panels = [("network", given, "good" if given == truth else "bad")]
    panels += [("truth", truth, "plain")] if given != truth else []
    return Card(
        picture=draw_grid(grid.tolist(), task.num_values),
        answers=draw_answer(panels, task.num_values, task.grid_size),
        composition=tuple(RULES[rule] for rule in batch.latents[row].tolist()),
        remarks=tuple(remarks),
    )


def _judge_functions(task: FuzzyLogic, predictions: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    answers = task.read(predictions)
    return answers, (answers - batch.targets).abs() < TOLERANCE


def _draw_function(task: FuzzyLogic, batch: Batch, row: int, answer: Tensor) -> Card:
    truth, given = float(batch.targets[row]), float(answer)
    terms = [task.describe((term,))[1:-1] for term in batch.latents[row].tolist()]
    query = ", ".join(f"{value:.2f}" for value in batch.inputs[row, -1, :-1].tolist())
    return Card(
        picture=draw_values(batch.inputs[row, :-1, -1].tolist(), truth, given),
        answers=Markup(""),
        composition=tuple(f"({term})" for term in terms),
        remarks=(f"at x = ({query})", f"network {given:.3f}, truth {truth:.3f}, error {abs(given - truth):.3f}"),
    )


Judge = Callable[..., tuple[Tensor, Tensor]]
Draw = Callable[..., Card]
GALLERIES: dict[str, tuple[Judge, Draw, str]] = {
    SRaven.name: (_judge_puzzles, _draw_puzzle, "every feature of the last panel is right"),
    FuzzyLogic.name: (_judge_functions, _draw_function, f"the answer lies within {TOLERANCE} of the true value"),
}
assert all(issubclass(each, Task) for each in (SRaven, FuzzyLogic))
