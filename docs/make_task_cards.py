"""Write the cards of all task families: docs/tasks/<family>.md, with a picture of an instance.

    python docs/make_task_cards.py [--num-instances 1024]

Every number on a card comes from the code: sizes from the presets, compositions from the certificates, reference scores from
`recombine check TASK --scale SCALE`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from recombine.errors import InputError
from recombine.evaluate import describe_metrics, score_references
from recombine.models import count_parameters
from recombine.run import default_run
from recombine.sweep.kept_costs import PACKAGED, estimate_hours, read_costs
from recombine.tables import format_number
from recombine.tasks import TASKS, Task
from recombine.tasks.base import SCALES

FOLDER = Path(__file__).parent / "tasks"
MAX_NAMES = 13  # modules on a card
OWN_PAGES = {"language": "../language.md"}  # a card would have to prepare a corpus first


def write_card(name: str, task_class: type[Task], num_instances: int) -> str:
    """The page of a family."""
    runs = {scale: default_run(task_class, scale) for scale in SCALES}
    task = runs["tiny"].task
    command = name.replace("_", "-")
    summary = task.summary[:1].upper() + task.summary[1:].rstrip(".")
    parts = [f"# {command}", f"{link_papers(summary)}.", draw_instance(command, task)]
    parts.append(f"*The first instance of `ood` at scale tiny: `recombine show {command} --scale tiny`.*")
    parts += ["## Modules", list_modules(task)]
    hours = estimate_hours(PACKAGED)
    rows = [
        [
            scale,
            f"{len(run.task.split.certificate.coverage):,}",
            f"{run.task.split.certificate.num_train:,}",
            f"{run.task.split.certificate.num_ood:,}",
            str(run.task.split.certificate.min_coverage),
            run.model.label,
            f"{count_parameters(run.build_model()):,}",
            f"{run.training.steps:,} × {run.training.batch_size:,}",
            show_time(hours(run)),
        ]
        for scale, run in runs.items()
    ]
    names = [
        "scale",
        "modules",
        "trained",
        "held out",
        "least per module",
        "model",
        "parameters",
        "steps × batch",
        "time",
    ]
    sizes = "Numbers of modules, trained compositions and held-out compositions, and the least number of trained "
    sizes += "compositions that any module is part of\n(seed 0). Then the default model and training, and the "
    sizes += f"estimated time on one core of this processor: {read_costs(PACKAGED)['processor']}."
    parts += ["## Sizes", sizes, table(names, rows, numbers={1, 2, 3, 4, 6, 7, 8})]
    splits = [[f"`{split}`", task.split_title(split), task.split_meaning(split)] for split in task.splits]
    parts += ["## Splits", table(["split", "called", "holds"], splits)]
    references = score_references(task, num_instances=num_instances)
    metrics = describe_metrics(task, references.values())
    scores = [
        [
            f"`{split}`",
            metrics[metric]["title"],
            *(format_number(score[key]) for key in ("chance", "ceiling", "agnostic")),
        ]
        for split, values in references.items()
        for metric, score in values.items()
    ]
    parts += [
        "## Metrics and reference scores",
        f"At scale tiny, {num_instances:,} instances per split (`recombine check {command} --scale tiny --num-instances "
        f"{num_instances}`). *Chance* ignores the input; the *ceiling* is the best possible score; *agnostic* is the best "
        "without knowing which compositions the split holds. A ceiling below a perfect score means ambiguous instances.",
        table(["split", "metric", "chance", "ceiling", "agnostic"], scores, numbers={2, 3, 4}),
    ]
    settings = [[f"`{field.name}`", f"`{getattr(runs['paper'].task, field.name)!r}`"] for field in fields(task)]
    parts += [
        "## Settings",
        f"Values at scale paper; `recombine train {command} --help` describes them.",
        table(["setting", "value"], settings),
    ]
    parts.append(f"Models with sizes for this task: {', '.join(f'`{model}`' for model in task.models)}.")
    return "\n\n".join(parts) + "\n"


def list_modules(task: Task) -> str:
    """How many modules there are and what they are called."""
    names = [task.describe((module,)) for module in sorted(task.split.certificate.coverage)]
    if len(names) == 1:
        return "This family has no modules: its compositions are the lengths of sequences."
    shown = ", ".join(f"`{name}`" for name in names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    return f"{len(names)} at scale tiny: {shown}."


def show_time(hours: float | None) -> str:
    """A time in one or two digits."""
    if hours is None:
        return "–"
    for unit, length in (("days", 24.0), ("hours", 1.0), ("min", 1 / 60)):
        if hours >= 2 * length:
            return f"{hours / length:.0f} {unit}"
    return f"{max(hours * 3600, 1):.0f} s"


def draw_instance(name: str, task: Task) -> str:
    """A picture of the first held-out instance, or its text."""
    batch = task.sample("ood", 0, batch_size=1)
    path = FOLDER / f"{name}.png"
    try:
        task.draw(batch, 0, path)
    except InputError:
        return "```text\n" + "\n".join(line[:110] for line in task.render(batch, 0).splitlines()[:24]) + "\n```"
    return f"![An instance of {name}]({path.name})" + '{ width="520" }'


def link_papers(text: str) -> str:
    """A text whose arXiv numbers are links."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def table(names: list[str], rows: list[list[str]], numbers: Collection[int] = ()) -> str:
    """A table in Markdown; columns of numbers are aligned to the right."""
    marks = ["---:" if column in numbers else "---" for column in range(len(names))]
    lines = [names, marks, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-instances", type=int, default=1_024)
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    index = []
    for name, task_class in TASKS.items():
        if name not in OWN_PAGES:
            (FOLDER / f"{name}.md").write_text(write_card(name, task_class, options.num_instances))
        page = OWN_PAGES.get(name, f"{name}.md")
        index.append([f"[{name.replace('_', '-')}]({page})", link_papers(task_class.summary)])
    text = "A card for each family, written by `make cards`, with the paper that the family comes from."
    (FOLDER / "index.md").write_text(f"# Tasks\n\n{text}\n\n{table(['task', 'what it asks'], index)}\n")


if __name__ == "__main__":
    main()
