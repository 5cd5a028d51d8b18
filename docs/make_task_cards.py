"""Write the cards of all task families: docs/tasks/<family>.md, with a picture of an instance.

    python docs/make_task_cards.py [--num-instances 1024]

Every number on a card comes from the code: sizes from the presets, compositions from the certificates, settings from the
dataclass, reference scores from `recombine check TASK --scale SCALE`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path

from recombine.foundation.display import format_number
from recombine.foundation.errors import InputError
from recombine.models.transformer import count_parameters
from recombine.tasks import TASKS
from recombine.tasks.base import SCALES, Task
from recombine.tasks.sampling import count_repeated
from recombine.tasks.view import write_picture
from recombine.training.config import RunConfig, default_run
from recombine.training.score import describe_metrics, score_references

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
    parts += ["## Sizes", describe_sizes(task), tabulate_sizes(runs)]
    splits = [[f"`{split}`", task.split_title(split), task.split_meaning(split)] for split in task.splits]
    parts += ["## Splits", table(["split", "title", "contents"], splits)]
    parts += [
        "## Metrics and reference scores",
        f"At scale tiny, with {num_instances:,} instances per split (`recombine check {command} --scale tiny "
        f"--num-instances {num_instances}`). *Chance* is the score of the best answer that ignores the input, the *ceiling* "
        "the best possible score, and *agnostic* the best possible score without knowing which compositions the split has. "
        "A ceiling below a perfect score means that some instances are ambiguous.",
        tabulate_references(task, num_instances),
        describe_repeated(task, num_instances),
    ]
    parts += [
        "## Settings",
        "Defaults are those of scale paper. Each setting is also a flag, such as "
        f"`--{fields(task)[1].name.replace('_', '-')}`.",
        tabulate_settings(runs["paper"].task),
    ]
    parts.append(f"Models with sizes for this task: {', '.join(f'`{model}`' for model in task.models)}.")
    return "\n\n".join(parts) + "\n"


def describe_repeated(task: Task, num_instances: int) -> str:
    """How many instances come up in training too."""
    counts = count_repeated(task, num_instances=num_instances)
    named = " and ".join(f"{count:,} of `{split}`" for split, count in counts.items() if count) or "none"
    return f"Instances that are also among {num_instances:,} of `train`, by their inputs: {named}."


def has_modules(task: Task) -> bool:
    return len(task.split.certificate.coverage) > 1


def describe_sizes(task: Task) -> str:
    """What the columns of the table of sizes are."""
    counted = "The numbers of trained and of held-out lengths"
    if has_modules(task):
        counted = (
            "The numbers of modules, of trained and of held-out compositions, and the fewest that train any one module"
        )
    return f"{counted}\n(seed 0); the default model and training."


def tabulate_sizes(runs: Mapping[str, RunConfig]) -> str:
    """A row per scale."""
    rows = []
    for scale, run in runs.items():
        certificate = run.task.split.certificate
        row = {"scale": scale, "modules": f"{len(certificate.coverage):,}", "trained": f"{certificate.num_train:,}"}
        row |= {"held out": f"{certificate.num_ood:,}", "fewest per module": str(certificate.min_coverage)}
        row |= {"model": run.model.label, "parameters": f"{count_parameters(run.build_model()):,}"}
        row |= {"steps × batch": f"{run.training.steps:,} × {run.training.batch_size:,}"}
        if not has_modules(run.task):
            del row["modules"], row["fewest per module"]
        rows.append(row)
    names = list(rows[0])
    numbers = {number for number, name in enumerate(names) if name not in ("scale", "model")}
    return table(names, [list(row.values()) for row in rows], numbers=numbers)


def tabulate_references(task: Task, num_instances: int) -> str:
    """Chance, ceiling and agnostic optimum of each split and metric."""
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
    return table(["split", "metric", "chance", "ceiling", "agnostic"], scores, numbers={2, 3, 4})


def tabulate_settings(task: Task) -> str:
    """Each setting with its value and its meaning, which is the text below it in the source."""
    meanings: dict[str, str] = {}
    for owner in reversed(type(task).__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, after in itertools.pairwise(body.body):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                meanings[ast.unparse(line.target)] = " ".join(str(after.value.value).split())
    rows = [
        [f"`{field.name}`", f"`{getattr(task, field.name)!r}`", meanings.get(field.name, "")] for field in fields(task)
    ]
    return table(["setting", "default", "meaning"], rows)


def list_modules(task: Task) -> str:
    """How many modules there are and what they are called."""
    names = [task.describe((module,)) for module in sorted(task.split.certificate.coverage)]
    if not has_modules(task):
        return "This family has no modules: its compositions are the lengths of sequences."
    if all(re.fullmatch(r"module \d+", name) for name in names):
        return f"{len(names)} at scale tiny: random weights that stay fixed. They have numbers instead of names."
    shown = ", ".join(f"`{name}`" for name in names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    return f"{len(names)} at scale tiny: {shown}."


def draw_instance(name: str, task: Task) -> str:
    """A picture of the first held-out instance, or its text."""
    batch = task.sample("ood", 0, batch_size=1)
    path = FOLDER / f"{name}.svg"
    try:
        write_picture(path, task.picture(batch, 0))
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
    text = "Each task family has a card, written by `make cards`. The link in brackets is the paper that it comes from."
    (FOLDER / "index.md").write_text(f"# Tasks\n\n{text}\n\n{table(['task', 'what it asks'], index)}\n")


if __name__ == "__main__":
    main()
