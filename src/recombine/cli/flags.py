"""Flags of the verbs that name a task: those of the verb, of the task, of the model and of the training, all in one list.

`--scale` and `--model` decide which other flags there are and what their defaults are, so the command line is read twice:
first for these two, then in full.

What the commands share: common flags and tables of scores.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, TypeVar, cast

import tyro

from recombine.cli.main import VERBS, ParsedFlags, examples_of, parse, parse_known
from recombine.cli.output import Output
from recombine.foundation.errors import InputError
from recombine.foundation.tables import Cell, Table, Value
from recombine.models.base import ModelConfig, find_task
from recombine.tasks.base import REFERENCES, Scale, Task
from recombine.tasks.families import TASKS
from recombine.tasks.sampling import SPLIT_TITLES
from recombine.training.benchmark import load_config
from recombine.training.config import RunConfig, TrainingConfig, default_run
from recombine.training.directory import RunDirectory
from recombine.training.loop import Progress, StepWatcher, Watcher
from recombine.training.schema import Json, MetricDict, SplitDict

REFERENCE_LEGEND = (
    "chance: the score of the best answer that ignores the input\nceiling: the best possible score on the split\n"
    "agnostic: the best possible score without knowing which compositions the split has"
)


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """Flags of every verb that loads runs."""

    code: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FILE.py:NAME")] = ()
    """Task or model of the run, if it is not part of this package; same form as for `train`. Runs this code. Repeatable."""


class Starting:
    """A watcher of a training that remembers whether there was anything to train."""

    def __init__(self, watch: Watcher | None) -> None:
        self.watch = watch
        self.started = False

    def __call__(self, progress: Progress) -> None:
        self.started = True
        if self.watch is not None:
            self.watch(progress)

    def before_step(self, step: int, steps: int) -> None:
        """Passed on to a watcher of single steps."""
        if isinstance(self.watch, StepWatcher):
            self.watch.before_step(step, steps)


def score_table(
    scores: Json,
    title: str = "scores",
    *,
    metrics: Mapping[str, MetricDict] | None = None,
    splits: Mapping[str, SplitDict] | None = None,
) -> Table:
    """Scores of one run, one row per split and metric. `metrics` and `splits` come from `result.json`."""
    rows = tuple(
        (split, title_of(metric, metrics), *_score_cells(score))
        for split, values in scores.items()
        for metric, score in values.items()
    )
    columns = ("split", "metric", "score (95 % interval)", *REFERENCES)
    return Table(title=title, columns=columns, rows=rows, note=f"{split_legend(scores, splits)}\n{REFERENCE_LEGEND}")


def _score_cells(score: Json) -> tuple[Value, ...]:
    return Cell(value=score["value"], low=score["low"], high=score["high"]), *(score.get(name) for name in REFERENCES)


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


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOutput):
    """Flags of every verb that names a task or a run with one."""

    scale: Scale = "paper"
    """Size of the task. Sets the defaults of all other flags."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Output):
    """Flags of every verb that names a task and a model."""

    scale: Scale = "paper"
    """Size of task, model and training: tiny takes at most 5 minutes, paper up to days. Sets all other defaults."""
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """Model to train, by name or as FILE.py:CLASS (default: the task's first). Determines the available model flags."""


TaskVerb = TypeVar("TaskVerb", bound=TaskOptions)
ModelVerb = TypeVar("ModelVerb", bound=ModelOptions)


@dataclass(frozen=True, kw_only=True)
class TaskFlags(ParsedFlags):
    """All flags of a verb that names a task. tyro uses the flags of the default value's class."""

    options: TaskOptions
    task: Task

    def is_verbose(self) -> bool:
        return self.options.verbose

    def shows_progress(self) -> bool:
        return self.options.shows_progress()


@dataclass(frozen=True, kw_only=True)
class RunFlags(ParsedFlags):
    """All flags of a verb that names a task and a model."""

    options: ModelOptions
    task: Task
    model: ModelConfig
    training: TrainingConfig

    def is_verbose(self) -> bool:
        return self.options.verbose

    def shows_progress(self) -> bool:
        return self.options.shows_progress()


def parse_task(owner: type[TaskVerb], argv: Sequence[str], *, verb: str) -> tuple[Task, TaskVerb]:
    """The task that a command names first, or that of a run, with its flags, and the verb's own flags."""
    if argv and (Path(argv[0]) / "config.json").exists():
        flags, prog = list(argv[1:]), f"{verb} {argv[0]}"
        known = parse_known(owner, flags, prog=prog)
        if any(flag == "--scale" or flag.startswith("--scale=") for flag in flags):
            raise InputError(f"--scale and the run {argv[0]}: expected one of them, because a run has its own sizes")
        task = load_config(RunDirectory.open(argv[0]), known.code).task
        task_class = type(task)
    else:
        task_class, flags, prog = _split_task(argv, verb)
        task = default_run(task_class, parse_known(owner, flags, prog=prog).scale).task
    default = TaskFlags(options=owner(), task=task)
    _require_distinct(default.options, task)
    parsed = parse(TaskFlags, flags, prog=prog, **_tyro_options(default, task_class, verb))
    return parsed.task, cast(TaskVerb, parsed.options)


def parse_run(owner: type[ModelVerb], argv: Sequence[str], *, verb: str) -> tuple[RunConfig, ModelVerb]:
    """The run that a command describes: task, model and training with their flags, and the verb's own flags."""
    task_class, flags, prog = _split_task(argv, verb)
    first = parse_known(owner, flags, prog=prog)
    run = default_run(task_class, first.scale, first.model)
    default = RunFlags(options=owner(), task=run.task, model=run.model, training=run.training)
    _require_distinct(default.options, run.task, run.model, run.training)
    parsed = parse(RunFlags, flags, prog=prog, **_tyro_options(default, task_class, verb))
    return RunConfig(task=parsed.task, model=parsed.model, training=parsed.training), cast(ModelVerb, parsed.options)


def _split_task(argv: Sequence[str], verb: str) -> tuple[type[Task], list[str], str]:
    """The task class that a command names first, the flags after it, and the command up to there."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_describe_task_verb(verb, shutil.get_terminal_size().columns))
        raise SystemExit(0 if argv else 2)
    return find_task(argv[0]), list(argv[1:]), f"{verb} {argv[0]}"


def _describe_task_verb(verb: str, width: int) -> str:
    """The help of a verb before a task is named."""
    names = ", ".join(name.replace("_", "-") for name in TASKS)
    run, files = "" if verb == "train" else "|RUN", " FILE ..." if verb == "score" else ""
    paragraphs = (
        _make_sentence(VERBS[verb]),
        f"TASK is one of {names}; the name of a task in an installed package; or your own, as FILE.py:CLASS or "
        f"package.module:CLASS.{' RUN is a run directory, whose task is used.' if run else ''}",
        f"`recombine {verb} TASK --help` lists the flags for a task.",
    )
    shown = "\n\n".join(textwrap.fill(text, width, break_on_hyphens=False) for text in paragraphs)
    examples = "".join(f"\n  {example}" for example in examples_of(verb))
    return f"usage: recombine {verb} TASK{run}{files} [flags]\n\n{shown}\n\nExamples{examples}"


def _make_sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _tyro_options(default: TaskFlags | RunFlags, task: type[Task], verb: str) -> dict[str, object]:
    summary = f"{_make_sentence(VERBS[verb])} The task: {task.summary.rstrip('.')}."
    models = f" Models with sizes for this task: {', '.join(task.models)}." if isinstance(default, RunFlags) else ""
    return {"default": default, "description": summary + models, "config": (tyro.conf.OmitArgPrefixes,)}


def _require_distinct(*owners: object) -> None:
    """Require the settings of a task and a model to have different names, because their flags share one list."""
    seen: dict[str, str] = {}
    for owner in owners:
        for field in fields(owner):  # type: ignore[arg-type]
            if field.name in seen:
                raise InputError(
                    f"{type(owner).__name__} and {seen[field.name]} both have a setting {field.name!r}: "
                    "expected different names"
                )
            seen[field.name] = type(owner).__name__
