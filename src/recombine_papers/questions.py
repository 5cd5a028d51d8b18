"""What reproduces, in one minute: a line per main question of the papers, and a figure of trained against held-out scores.

Both are made of stored results alone. A question names the runs that it shows and the statements of the card that answer it;
all numbers and verdicts come from these.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from recombine.foundation import replace_file
from recombine.tasks import COLOUR_SCALES
from recombine_papers.base import Finished, Group
from recombine_papers.card import SOME, CardRow, Statement, list_statements
from recombine_papers.claims import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = tuple[list[float], list[float]]  # of each seed, on trained and on held-out compositions


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question: the runs that are shown, by label, and the texts of the statements that answer it, by a short form."""

    text: str
    shown: Mapping[str, Settings]
    statements: Mapping[str, str]
    quantities: tuple[str, ...] = ()  # measured numbers on trained and held-out data; default: the experiment's score
    middle: Callable[[Sequence[float]], float] = fmean
    panel: str = ""  # the title in the figure


def list_attentions(**rest: float | int) -> dict[str, Settings]:
    """The three attentions with other settings equal."""
    return {name: {"attention": name.lower(), **rest} for name in ("HYLA", "softmax", "linear")}


EXCESS = "beyond a better fit"
QUESTIONS = (
    Question(
        text="Does HYLA recombine fuzzy-logic terms better than softmax attention? (R²)",
        shown=list_attentions(dropout=0.1, steps=20_000),
        statements={
            "better": "HYLA recombines fuzzy-logic terms better than softmax attention",
            EXCESS: f"{EXCESS}, HYLA recombines fuzzy-logic terms better than softmax attention",
        },
        panel="fuzzy logic, R²",
    ),
    Question(
        text="Does HYLA recombine the rules of Raven matrices better than softmax attention? (accuracy)",
        shown=list_attentions(dropout=0.0),
        statements={
            EXCESS: f"{EXCESS}, with few instances and a small model, HYLA recombines rules of Raven matrices better than "
            "softmax attention"
        },
        panel="SRAVEN, accuracy",
    ),
    Question(
        text="Can terms and rules be decoded from latent codes? (R² of a decoder of terms)",
        shown=list_attentions(tokens=32, dropout=0.1),
        statements={
            "terms": "terms are decodable with the authors' decoder (R² above that of the untrained network)",
            "rules": "rules are decodable from the latent code (F1 above the untrained network and the majority)",
        },
        quantities=("bits_trained", "bits_held_out"),
    ),
    Question(
        text="Do 81 training compositions instead of 14 help? (R²)",
        shown={"with 81": {"compositions": 81}, "with 14": {"compositions": 14}},
        statements={EXCESS: f"{EXCESS}, more training compositions lead to better recombination"},
    ),
    Question(
        text="Must training connect the modules? (R²)",
        shown={"connected": {"support": "random"}, "disconnected": {"support": "disconnected"}},
        statements={
            EXCESS: f"{EXCESS}, modules must be connected in training: disconnected support against a random one"
        },
    ),
    Question(
        text="Do networks recombine modules whatever the encoding of the task? (R²)",
        shown={
            name: {"encoding": name.replace(" ", "_"), "width": "wide"}
            for name in ("identity", "orthogonal", "tokens", "interval shuffle", "invertible", "few shot")
        },
        statements={"R² ≥ 0.9": "a network recombines modules whatever the encoding"},
    ),
    Question(
        text="In context, does a bottleneck recombine modules where a vanilla transformer fails? (R²; 6 or 12 of 15 pairs trained)",
        shown={
            f"{model}, {trained}": {"model": model, "trained": trained, "modules": "shared", "trunk": "softmax"}
            for trained in (6, 12)
            for model in ("bottleneck", "vanilla")
        },
        statements={
            "ahead": "the bottleneck is ahead of the vanilla transformer on held-out compositions",
            "R² ≥ 0.9": "the bottleneck succeeds on held-out compositions",
        },
        panel="in context, R²",
    ),
    Question(
        text="Trained on 10 tokens, do students follow their teacher to 100? (error over that of a constant)",
        shown={
            name: {"student": name.replace(" ", "_").lower(), "rate": 1e-3}
            for name in ("deep set", "attention", "softmax attention", "SSM", "RNN")
        },
        statements={"≤ 0.01": "students match their teacher at 100 tokens (log10 of the ratio to a constant)"},
        quantities=("ratio_10", "ratio_100"),
        middle=median,
    ),
)


@dataclass(frozen=True)
class Answer:
    """A question with its statements and its runs."""

    question: Question
    statements: Mapping[str, Statement]
    groups: Mapping[str, Group]

    @property
    def row(self) -> CardRow:
        """The first row of the card that answers."""
        return next(iter(self.statements.values())).first

    def read(self, group: Group) -> Numbers:
        """The numbers that are shown."""
        if self.question.quantities:
            trained, held_out = map(group.measured, self.question.quantities)
            return trained, held_out
        metric = self.row.experiment.metric
        return group.scores("test", metric), group.scores("ood", metric)


def answer_questions(rows: Iterable[CardRow], results: Path) -> Iterator[Answer]:
    """The questions whose statements are among the rows and whose runs are stored."""
    found = {statement.first.claim.text: statement for statement in list_statements(rows)}
    for question in QUESTIONS:
        statements = {name: found[text] for name, text in question.statements.items() if text in found}
        finished = find_runs(question, statements.values(), results)
        groups = {name: finished.find(**settings) for name, settings in question.shown.items()}
        if complete := {name: group for name, group in groups.items() if group is not None}:
            yield Answer(question, statements, complete)


def find_runs(question: Question, statements: Iterable[Statement], results: Path) -> Finished:
    """The runs of the first experiment behind the statements that has all settings of the question."""
    rows = [row for statement in statements for row in statement.rows]
    for experiment, scale in {(row.experiment.name, row.scale): (row.experiment, row.scale) for row in rows}.values():
        finished = experiment.read(results, scale)
        if all(finished.find(**settings) for settings in question.shown.values()):
            return finished
    return Finished(())


def tabulate_questions(rows: Sequence[CardRow], results: Path) -> list[dict[str, str]]:
    """A line per question."""
    lines = []
    for answer in answer_questions(rows, results):
        numbers = {name: answer.read(group) for name, group in answer.groups.items()}
        middle = answer.question.middle
        trained, held_out = (
            "<br>".join(
                f"{show_number(middle(values[split]))} {name}".replace(" ", NO_BREAK)
                for name, values in numbers.items()
            )
            for split in (0, 1)
        )
        lines.append(
            {
                "question": answer.question.text,
                "size and seeds": describe_size(answer),
                "trained": trained,
                "held out": held_out,
                "reproduced?": "<br>".join(f"{name}: {judge(each)}" for name, each in answer.statements.items()),
            }
        )
    return lines


def show_number(value: float) -> str:
    """Two decimals, or the power of ten where these would be zeros."""
    return f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.0e}".replace("e-0", "e−")


def describe_size(answer: Answer) -> str:
    """Parameters, steps and seeds of the runs, and whether the paper's are larger."""
    runs = [run for group in answer.groups.values() for run in group.runs]
    parameters, steps = ({run.result[name] for run in runs} for name in ("num_parameters", "steps"))
    seeds = {len(group.runs) for group in answer.groups.values()}
    row = answer.row
    whole = row.experiment.has_size_of_paper(row.claim, Finished(tuple(runs)))
    return (
        f"{show_range(parameters)} parameters, {show_range(steps)} steps"
        f"<br>{show_range(seeds)} seed{'s' * (max(seeds) > 1)}{'' if whole else '; paper larger'}"
    )


def show_range(numbers: Iterable[int]) -> str:
    """The lowest and the highest of some numbers, in thousands where they are that large."""
    ends = sorted(numbers)
    return " to ".join(dict.fromkeys(f"{n / 1000:,.0f}k" if n >= 1000 else str(n) for n in (ends[0], ends[-1])))


NO_BREAK = "\u00a0"
WORDS = {"seen": "**yes**", "seen in part": "in part", "not seen": "no", "preliminary": "one seed, open"}


def judge(statement: Statement) -> str:
    """The verdict in a word or two; where settings differ, in how many the claim is seen."""
    decided = statement.decided
    if len({row.verdict for row in decided}) > 1:
        seen = sum(row.verdict == "seen" for row in decided)
        return f"{'in ' if statement.verdict == SOME else 'no, '}{seen} of {len(decided)} settings"
    return WORDS.get(statement.verdict, statement.verdict)


BLACK, WHITE, GREY = "#000000", "#ffffff", "#8a8a8a"
MARKERS = ("o", "s")  # of the first and the second half of a panel's labels, where there are more than three


def draw_questions(rows: Sequence[CardRow], results: Path, folder: Path) -> list[Path]:
    """Trained against held-out scores, a dot per seed; the picture follows the colour scheme of the reader."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    answers = [answer for answer in answer_questions(rows, results) if answer.question.panel]
    if not answers:
        return []
    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "questions", "font.size": 9, "axes.grid": False}):
        figure = Figure(figsize=(3.1 * len(answers), 3.3), layout="constrained")
        lowest = min(min(answer.read(group)[1]) for answer in answers for group in answer.groups.values())
        for axes, answer in zip(figure.subplots(1, len(answers), squeeze=False)[0], answers, strict=True):
            draw_panel(axes, answer, lowest - 0.05)
        figure.savefig(content, format="svg", metadata={"Date": None})
    path = folder / "questions.svg"
    replace_file(path, adapt_colours(content.getvalue()).encode())
    return [path]


def draw_panel(axes: Axes, answer: Answer, low: float) -> None:
    """A question: its runs, the diagonal on which held-out compositions are as good as trained ones, and the ceiling."""
    colours, metric = COLOUR_SCALES["light"]["class"], answer.row.experiment.metric
    per_marker = 3 if len(answer.groups) <= 3 else math.ceil(len(answer.groups) / 2)
    for number, (name, group) in enumerate(answer.groups.items()):
        colour, marker = colours[number % per_marker], MARKERS[number // per_marker]
        axes.plot(*answer.read(group), marker, color=colour, label=name, markersize=6, alpha=0.8)
    scores = [run.result["scores"]["ood"][metric] for group in answer.groups.values() for run in group.runs]
    ceiling = fmean(score["ceiling"] for score in scores)
    axes.plot([low, ceiling], [low, ceiling], "-", color=GREY, linewidth=0.8, zorder=0)
    axes.axhline(ceiling, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    axes.text(low + 0.01, ceiling + 0.005, "ceiling", color=GREY, fontsize=8)
    axes.set(xlabel="trained compositions", ylabel="held-out compositions", title=answer.question.panel)
    axes.set(xlim=(low, 1.03), ylim=(low, 1.05), aspect="equal")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, (ceiling - low) / (1.05 - low)))


def adapt_colours(svg: str) -> str:
    """The picture with colours as variables, which a dark colour scheme replaces."""
    light, dark = (COLOUR_SCALES[scheme]["class"][:3] for scheme in ("light", "dark"))
    themes = {"ink": (BLACK, "#e6edf3"), "paper": (WHITE, "#0d1117"), "quiet": (GREY, GREY)}
    themes |= {f"series-{number}": pair for number, pair in enumerate(zip(light, dark, strict=True))}
    rules = []
    for scheme in (0, 1):
        rules.append(":root{" + ";".join(f"--{name}:{pair[scheme]}" for name, pair in themes.items()) + "}")
    for name, (colour, _) in themes.items():
        svg = svg.replace(colour, f"var(--{name})")
    style = f"<style>{rules[0]}@media (prefers-color-scheme:dark){{{rules[1]}}}text{{fill:var(--ink)}}</style>"
    return svg.replace("<defs>", f"{style}<defs>", 1)
