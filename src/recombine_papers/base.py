"""Experiments: named records to run, and the tables and figures made of the finished runs.

A `Record` is one run with its named settings as data. The same records reach the command line, the tables and the figures,
so that nothing is read back from text. To add an experiment, subclass `Experiment` and yield its records:

    class Widths(Experiment):
        name = "widths"
        question = "Do wider networks recombine modules better?"
        metric = "r2_pooled"
        compared = "width"

        def records(self, scale):
            for width in (16, 64):
                run = default_run("hyperteacher", scale)
                yield Record(settings={"width": width}, config=replace(run, model=replace(run.model, hidden_dim=width)))

`recombine reproduce path/to/file.py:Widths` runs it; installed packages register experiments through the entry-point group
`recombine.experiments`. `PaperExperiment` adds claims and stored results.

`Finished` holds the finished runs, in groups that differ in their seed only. `compare_scores` is the table that most
experiments need: one score per setting, differences, and the published numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from torch import nn

from recombine.foundation import (
    Cell,
    Column,
    InputError,
    Number,
    Table,
    Value,
    check_choice,
    describe_settings,
    find_entry_points,
    load_object,
    show_setting,
    track,
)
from recombine.sweeps import Published, Record, Setting, matches, mean_cell
from recombine.tasks import Metric, Scale
from recombine.training import (
    Json,
    RunConfig,
    RunDirectory,
    SeedScore,
    compare_seeds,
    have_same_instances,
    load_run,
    score_results,
)


@dataclass(frozen=True)
class FinishedRun:
    """A record and the run directory that it was trained in."""

    record: Record
    run: RunDirectory
    measured: Mapping[str, float] = field(default_factory=dict)  # what `Experiment.measures` read from it

    @cached_property
    def result(self) -> Json:
        return self.run.read_json("result.json")

    @cached_property
    def certificate(self) -> Json:
        return dict(self.run.read_json("split.json", complete=True)["certificate"])

    @property
    def is_fair(self) -> bool:
        """Whether the training compositions cover all modules and connect them."""
        return bool(self.certificate["covered"] and self.certificate["connected"])

    @property
    def curve(self) -> list[Json]:
        """The points of the learning curve that have scores."""
        return [row for row in self.run.iterate_metrics() if "scores" in row]

    def scores_by_step(self, split: str, metric: str) -> dict[int, float]:
        """The learning curve of a metric."""
        values = {row["step"]: row["scores"].get(split, {}).get(metric) for row in self.curve}
        return {step: value for step, value in values.items() if value is not None}

    def score(self, split: str, metric: str) -> float | None:
        """A score, or None where the run has no such split or metric."""
        value = self.result["scores"].get(split, {}).get(metric, {}).get("value")
        return None if value is None else float(value)

    def sums(self, split: str, metric: str) -> list[list[float]]:
        """Numerators and denominators of a metric per composition."""
        return list(self.result["composition_sums"][split][metric])


def load_networks(path: Path | str, device: str) -> tuple[RunConfig, nn.Module, nn.Module]:
    """The configuration of a run, its network, and the same network before training."""
    _, config, trained = load_run(path, device)
    return config, trained, config.build_model().to(next(trained.parameters()).device)


@dataclass(frozen=True)
class Group:
    """The finished runs that have the same settings, one per seed."""

    settings: Mapping[str, Setting]
    runs: tuple[FinishedRun, ...]

    @property
    def text(self) -> str:
        return describe_settings(self.settings)

    @property
    def published(self) -> Published | None:
        return self.runs[0].record.published

    def scores(self, split: str, metric: str) -> list[float]:
        """One score per seed."""
        values = [run.score(split, metric) for run in self.runs]
        return [value for value in values if value is not None]

    def score(self, split: str, metric: str) -> SeedScore:
        """The mean over seeds with its interval."""
        return score_results([run.result for run in self.runs], split, metric)

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.record.seed for run in self.runs)

    def with_seeds(self, seeds: Collection[int]) -> Group | None:
        """The runs of these seeds, or None if there are none."""
        runs = tuple(run for run in self.runs if run.record.seed in seeds)
        return Group(self.settings, runs) if runs else None

    @property
    def minutes(self) -> float:
        """The training time of all seeds."""
        return sum(run.result["seconds"] for run in self.runs) / 60

    def measured(self, quantity: str) -> list[float]:
        """One measured number per seed that has it."""
        return [run.measured[quantity] for run in self.runs if quantity in run.measured]


@dataclass(frozen=True)
class Finished:
    """All finished runs of an experiment, and what it computes without runs."""

    runs: tuple[FinishedRun, ...]
    computed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by name, one number per seed
    computed_hours: float = 0.0  # core-hours of what was computed

    def __bool__(self) -> bool:
        return bool(self.runs or self.computed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all settings, in the order in which they first occur."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.record.settings))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Runs with the same settings together, in the order of the records."""
        members: dict[Any, list[FinishedRun]] = {}
        for run in self.runs:
            members.setdefault(run.record.key, []).append(run)
        return tuple(Group(runs[0].record.settings, tuple(runs)) for runs in members.values())

    def find(self, **wanted: Setting) -> Group | None:
        """The first group with these settings."""
        return next((group for group in self.groups if matches(group.settings, wanted)), None)

    def find_all(self, *wanted: Mapping[str, Setting]) -> list[Group] | None:
        """The groups with each of these settings, by the seeds that all of them have; None if there are no such runs."""
        found = [group for settings in wanted if (group := self.find(**settings)) is not None]
        if len(found) < len(wanted):
            return None
        shared = frozenset.intersection(*(group.seeds for group in found))
        chosen = [group.with_seeds(shared) for group in found]
        return [group for group in chosen if group is not None] or None

    @property
    def setting_columns(self) -> tuple[Column, ...]:
        """The columns that `show_settings` fills."""
        return tuple(Column(name=show_setting(name), format="plain") for name in self.names)

    def show_settings(self, settings: Mapping[str, Setting]) -> tuple[Setting | None, ...]:
        """The values of a row's settings, one per name; None for a setting that it does not have."""
        return tuple(
            value.replace("_", " ") if isinstance(value := settings.get(name), str) else value for name in self.names
        )


class Experiment(ABC):
    """A question, the records that answer it, and the tables and figures made of the finished runs."""

    name: ClassVar[str]
    question: ClassVar[str]
    metric: ClassVar[str]
    split: ClassVar[str] = "ood"
    compared: ClassVar[str | None] = None
    """The setting whose values are compared: differences are to its first value, with all other settings equal."""
    default_scale: ClassVar[Scale] = "small"
    core_hours: ClassVar[tuple[float | None, ...]] = ()
    """Measured cost of all runs on one core of a server, per scale (tiny, small, paper); None where it was not measured."""

    @abstractmethod
    def records(self, scale: Scale) -> Iterable[Record]:
        """The runs of the experiment at a scale, the most important first."""

    def measures(self, run: RunDirectory, device: str) -> Mapping[str, float]:
        """Numbers by name that are read from a run besides its scores, such as how well modules are decoded."""
        return {}

    def complete(self, finished: Finished) -> Finished:
        """The finished runs with what the experiment computes without training."""
        return finished

    def tables(self, finished: Finished, device: str) -> list[Table]:
        """What the runs show; by default a comparison of one score. Networks run on `device`."""
        return [compare_scores(self, finished), list_references(self, finished)]

    def measure_runs(self, finished: Finished, device: str) -> Finished:
        """The finished runs with the numbers that `measures` reads from them."""
        if type(self).measures is Experiment.measures or all(run.measured for run in finished.runs):
            return finished
        distinct = {run.run.path: run.run for run in finished.runs}  # several records may share a run
        values = {path: self.measures(run, device) for path, run in track(distinct.items(), "reading runs")}
        return replace(finished, runs=tuple(replace(run, measured=values[run.run.path]) for run in finished.runs))

    def answer(self, finished: Finished) -> str:
        """A sentence that answers the question, made of the numbers; empty while they do not answer it."""
        return ""

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        """Write the experiment's figures into a folder; returns their paths."""
        return []

    @property
    def has_figures(self) -> bool:
        return type(self).figures is not Experiment.figures


def installed_experiments() -> dict[str, Experiment]:
    """All experiments of installed packages, by name: what the entry points of the group `recombine.experiments` load.

    An entry point names an experiment, its class, or a dictionary of experiments.
    """
    experiments: dict[str, Experiment] = {}
    for entry in find_entry_points("recombine.experiments").values():
        loaded = entry.load()
        experiments |= loaded if isinstance(loaded, dict) else {entry.name: check_experiment(loaded, entry.name)}
    return experiments


def find_experiment(name: str) -> Experiment:
    """An experiment by name, from an installed package, or `FILE.py:NAME`."""
    if ":" in name:
        return check_experiment(load_object(name), name)
    experiments = installed_experiments()
    check_choice("experiment", name, (*experiments, "FILE.py:EXPERIMENT"))
    return experiments[name]


def check_experiment(experiment: Any, name: str) -> Experiment:
    """Accept an experiment or its class; refuse everything else."""
    if isinstance(experiment, type) and issubclass(experiment, Experiment):
        try:
            experiment = experiment()
        except TypeError as error:
            raise InputError(f"experiment {name!r} cannot be created ({error}): expected all its methods") from None
    if not isinstance(experiment, Experiment):
        raise InputError(f"{name!r} is not an experiment: expected a subclass of recombine_papers.Experiment")
    missing = [attribute for attribute in ("name", "question", "metric") if not hasattr(experiment, attribute)]
    if missing:
        raise InputError(f"experiment {name!r} lacks {', '.join(missing)}: expected class attributes with these names")
    return experiment


BOUNDS = ("value", "low", "high")
MINUTES = Column(name="minutes", format="fixed", digits=1)


def compare_scores(experiment: Experiment, finished: Finished) -> Table:
    """Scores on held-out compositions, paired differences and published numbers, one row per setting."""
    title, groups = metric_title(experiment, finished), finished.groups
    steps = sorted({run.result["steps"] for run in finished.runs})
    compared = experiment.compared if experiment.compared in finished.names else None
    has_published = any(group.published for group in groups)
    if compared is not None:
        first = next(group.settings[compared] for group in groups if compared in group.settings)
        baseline = show_setting(first) if isinstance(first, str) else f"{show_setting(compared)} {first}"
    sources = dict.fromkeys(group.published.source for group in groups if group.published)

    def list_cells(group: Group) -> list[Value]:
        row: list[Value] = [len(group.runs), cell(score_group(experiment, group))]
        if compared is not None:
            row.append(cell(difference_to_baseline(experiment, groups, group)))
        row.append(mean_cell(group.scores("test", experiment.metric)))
        if has_published:
            published = group.published
            row.append(None if published is None else Cell(value=published.value, error=published.error))
        return [*row, group.minutes]

    return tabulate_groups(
        finished,
        f"{title} on held-out compositions ({experiment.split}) after {' or '.join(map(str, steps))} steps",
        (
            "seeds",
            title,
            *([f"above {baseline}"] if compared is not None else []),
            "trained compositions",
            *(["paper"] if has_published else []),
            MINUTES,
        ),
        list_cells,
        explain_intervals(groups) + "".join(f"\npaper: {source}" for source in sources),
    )


def tabulate_groups(
    finished: Finished,
    title: str,
    columns: Sequence[str | Column],
    cells: Callable[[Group], Iterable[Value]],
    note: str = "",
) -> Table:
    """One row per group: its settings, and the cells of the columns."""
    rows = tuple((*finished.show_settings(group.settings), *cells(group)) for group in finished.groups)
    return Table(title=title, columns=(*finished.setting_columns, *columns), rows=rows, note=note)


def list_references(experiment: Experiment, finished: Finished) -> Table:
    """Scores that need no training, such as chance and the ceiling, averaged over runs."""
    values_of: dict[str, list[float]] = {}
    for run in finished.runs:
        score = run.result["scores"].get(experiment.split, {}).get(experiment.metric, {})
        references = {name: value for name, value in score.items() if name not in BOUNDS}
        for name, splits in run.result.get("baselines", {}).items():
            references[name] = splits.get(experiment.split, {}).get(experiment.metric)
        for name, value in references.items():
            if isinstance(value, int | float):
                values_of.setdefault(name, []).append(float(value))
    rows = tuple((show_setting(name), spread(values)) for name, values in values_of.items())
    has_spread = any(len(set(values)) > 1 for values in values_of.values())
    return Table(
        title="Without training, on the same instances",
        columns=("strategy", metric_title(experiment, finished)),
        rows=rows,
        note="in brackets: the lowest and the highest of all runs" if has_spread else "",
    )


def show_metric(experiment: Experiment, finished: Finished, metric: str | None = None) -> Metric:
    """How to show a metric, by default the experiment's."""
    return finished.runs[0].record.config.task.metric(metric or experiment.metric)


def metric_title(experiment: Experiment, finished: Finished) -> str:
    return show_metric(experiment, finished).title


def score_group(experiment: Experiment, group: Group, split: str | None = None, metric: str | None = None) -> SeedScore:
    """The mean over seeds of a score, by default the experiment's, with its interval."""
    return group.score(split or experiment.split, metric or experiment.metric)


def difference_between(
    experiment: Experiment, group: Group, other: Group, split: str | None = None, metric: str | None = None
) -> SeedScore | None:
    """The difference between two groups, paired over the seeds that both have; None if they share no instances."""
    split, metric = split or experiment.split, metric or experiment.metric
    others = {run.record.seed: run for run in other.runs}
    pairs = [(run, others[run.record.seed]) for run in group.runs if run.record.seed in others]
    sums = [(run.sums(split, metric), paired.sums(split, metric)) for run, paired in pairs]
    if not sums or not all(have_same_instances(mine, theirs) for mine, theirs in sums):
        return None
    return compare_seeds([mine for mine, _ in sums], [theirs for _, theirs in sums])


def difference_to_baseline(experiment: Experiment, groups: Sequence[Group], group: Group) -> SeedScore | None:
    """The difference to the first group whose settings are equal except for the one that is compared."""
    rest = {name: value for name, value in group.settings.items() if name != experiment.compared}
    for other in groups:
        if {name: value for name, value in other.settings.items() if name != experiment.compared} == rest:
            return None if other.settings == group.settings else difference_between(experiment, group, other)
    return None


def explain_intervals(groups: Sequence[Group], over: str = "compositions") -> str:
    """What the brackets of a table of scores are."""
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return f"in brackets: 95 % intervals over {over}; differences are paired by {over.rstrip('s')}"
    brackets = [
        *(["95 % intervals over seeds"] if max(counts) > 2 else []),
        *(
            ["the values of the two seeds" if max(counts) == 2 else "the two values where there are two seeds"]
            * (2 in counts)
        ),
        *([f"95 % intervals over {over} where there is one seed"] * (1 in counts)),
    ]
    paired = f"differences are paired by seed and {over.rstrip('s')}"
    return f"means over seeds; in brackets: {'; '.join(brackets)}; {paired}"


def cell(score: SeedScore | None) -> Cell | None:
    """A score over seeds with its interval, as a cell."""
    if score is None:
        return None
    values = score.values if score.num_seeds > 1 else ()
    if not math.isfinite(score.low) or score.low == score.high:  # a single measurement has no interval, nor a count
        return Cell(value=score.value, values=values)
    return Cell(value=score.value, low=score.low, high=score.high, values=values, pair=score.pair)


def spread(values: Sequence[Number | None], middle: str = "mean") -> Cell | None:
    """The mean or the median with the lowest and the highest, where there is more than one value."""
    from statistics import median

    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    value = median(numbers) if middle == "median" else fmean(numbers)
    if len(set(numbers)) == 1:
        return Cell(value=numbers[0])
    return Cell(value=value, low=min(numbers), high=max(numbers), values=tuple(numbers))
