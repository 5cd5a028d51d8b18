"""Shared by several verbs: the flags that name a task, a model or runs, and tables of scores.

The flags of a verb, of the task, of the model and of the training form one list. `--scale` and `--model` decide which other
flags there are and what their defaults are, so the command line is read twice: first for these two, then in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from recombine.cli.main import VERBS, Argument, Output, describe_verb, parse_groups, parse_known
from recombine.foundation.display import Cell, Table, Value
from recombine.foundation.errors import InputError
from recombine.models.base import find_task
from recombine.tasks.base import REFERENCES, Scale, Task
from recombine.tasks.families import TASKS
from recombine.tasks.sampling import SPLIT_TITLES
from recombine.training.benchmark import load_config
from recombine.training.config import RunConfig, default_run
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json, MetricDict, SplitDict

RunPath = Annotated[Path, Argument(metavar="RUN", positional=True)]


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """Flags of every verb that loads runs."""

    code: Annotated[tuple[str, ...], Argument(metavar="FILE.py:NAME", repeatable=True)] = ()
    """Task or model of the run, if it is not part of this package; same form as for `train`. Runs this code. Repeatable."""


@dataclass(frozen=True, kw_only=True)
class OneRunOptions(RunOutput):
    """Flags of verbs that load the network of one run."""

    run: RunPath
    """Run directory."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, ..."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOutput):
    """Flags of every verb that names a task or a run with one."""

    scale: Scale = "tiny"
    """Size of the task. Sets the defaults of all other flags."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Output):
    """Flags of every verb that names a task and a model."""

    scale: Scale = "tiny"
    """Size of task, model and training: tiny takes at most 5 minutes, paper up to days. Sets all other defaults."""
    model: str | None = None
    """Model to train, by name or as FILE.py:CLASS (default: the task's first). Determines the available model flags."""


TaskVerb = TypeVar("TaskVerb", bound=TaskOptions)
ModelVerb = TypeVar("ModelVerb", bound=ModelOptions)


def parse_task(owner: type[TaskVerb], argv: Sequence[str], *, verb: str) -> tuple[Task, TaskVerb]:
    """The task that a command names first, or that of a run, with its flags, and the verb's own flags."""
    name, flags, prog = _split_task(owner, argv, verb)
    known = parse_known(owner, flags, prog=prog)
    if (Path(name) / "config.json").exists():
        if any(flag == "--scale" or flag.startswith("--scale=") for flag in flags):
            raise InputError(f"--scale and the run {name}: expected one of them, because a run has its own sizes")
        task = load_config(RunDirectory.open(name), known.code).task
    else:
        task = default_run(find_task(name), known.scale).task
    groups = {"Options": owner, "Task": task}
    examples = _choose_examples(owner, verb, name)
    options, task = parse_groups(groups, flags, prog=prog, description=_describe(verb, task), examples=examples)
    return task, options


def parse_run(owner: type[ModelVerb], argv: Sequence[str], *, verb: str) -> tuple[RunConfig, ModelVerb]:
    """The run that a command describes: task, model and training with their flags, and the verb's own flags."""
    name, flags, prog = _split_task(owner, argv, verb)
    task_class = find_task(name)
    known = parse_known(owner, flags, prog=prog)
    run = default_run(task_class, known.scale, known.model)
    groups = {"Options": owner, "Training": run.training, "Task": run.task, "Model": run.model}
    text = f"{_describe(verb, run.task)} Models with sizes for this task: {', '.join(task_class.models)}."
    examples = _choose_examples(owner, verb, name)
    options, training, task, model = parse_groups(groups, flags, prog=prog, description=text, examples=examples)
    return RunConfig(task=task, model=model, training=training), options


def _split_task(owner: type[Output], argv: Sequence[str], verb: str) -> tuple[str, list[str], str]:
    """The task that a command names first, the flags after it, and the command up to there."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_write_help(owner, verb))
        raise SystemExit(0 if argv else 2)
    return argv[0], list(argv[1:]), f"{verb} {argv[0]}"


def _write_help(owner: type[Output], verb: str) -> str:
    """The help of a verb before a task is named."""
    names = ", ".join(name.replace("_", "-") for name in TASKS)
    run, files = "" if verb == "train" else "|RUN", " FILE ..." if verb == "score" else ""
    text = (
        f"{_make_sentence(VERBS[verb])}\n\nTASK is one of {names}; the name of a task in an installed package; or your own, "
        f"as FILE.py:CLASS or package.module:CLASS.{' RUN is a run directory, whose task is used.' if run else ''}\n\n"
        f"`recombine {verb} TASK --help` lists the flags for a task."
    )
    return f"usage: recombine {verb} TASK{run}{files} [flags]\n\n{describe_verb(text, owner.examples)}"


def _choose_examples(owner: type[Output], verb: str, name: str) -> list[str]:
    """The examples of a verb that are about a task or, if there are none, a short one."""
    start = f"recombine {verb} {name} "
    return [example for example in owner.examples if example.startswith(start)] or [f"{start}--seed 1"]


def _describe(verb: str, task: Task) -> str:
    return f"{_make_sentence(VERBS[verb])} The task: {task.summary.rstrip('.')}."


def _make_sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


REFERENCE_LEGEND = (
    "chance: the score of the best answer that ignores the input\nceiling: the best possible score on the split\n"
    "agnostic: the best possible score without knowing which compositions the split has"
)


def score_table(
    scores: Json,
    title: str = "scores",
    *,
    metrics: Mapping[str, MetricDict] | None = None,
    splits: Mapping[str, SplitDict] | None = None,
) -> Table:
    """Scores of a run or, without values, reference scores alone, one row per split and metric.

    `metrics` and `splits` come from `result.json`.
    """
    has_values = any("value" in score for values in scores.values() for score in values.values())
    rows: list[tuple[Value, ...]] = []
    for split, values in scores.items():
        for metric, score in values.items():
            cells = [Cell(**{name: score[name] for name in ("value", "low", "high")})] if has_values else []
            rows.append((split, title_of(metric, metrics), *cells, *(score.get(name) for name in REFERENCES)))
    columns = ("split", "metric", *(["score (95 % interval)"] if has_values else []), *REFERENCES)
    note = f"{split_legend(scores, splits)}\n{REFERENCE_LEGEND}"
    return Table(title=title, columns=columns, rows=tuple(rows), note=note)


def title_of(metric: str, metrics: Mapping[str, MetricDict] | None) -> str:
    """Title of a metric; the default for its name if the result does not contain one."""
    if metrics is None or metric not in metrics:
        return Task.metric(metric).title
    return metrics[metric]["title"]


def split_legend(scores: Iterable[str], splits: Mapping[str, SplitDict] | None = None) -> str:
    """Meaning of the splits in a table; `splits` comes from the task, see `describe_splits`."""
    titles: Mapping[str, str] = SPLIT_TITLES
    known = {} if splits is None else splits
    return "\n".join(
        f"{split}: {known[split]['meaning'] if split in known else titles.get(split, split)}" for split in scores
    )
