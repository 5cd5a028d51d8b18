"""The table that most experiments need: one score per setting, differences, and the published numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from recombine.recipes.experiment import Experiment, Finished, Group, show_setting
from recombine.seeds import SeedScore, compare_seeds, have_same_instances
from recombine.tables import Cell, Column, Number, Table, Value
from recombine.tasks.metrics import Metric

BOUNDS = ("value", "low", "high")


def compare_scores(experiment: Experiment, finished: Finished) -> Table:
    """Scores on held-out compositions, paired differences and published numbers, one row per setting."""
    title, groups = metric_title(experiment, finished), finished.groups
    steps = sorted({run.result["steps"] for run in finished.runs})
    has_difference = experiment.compared in finished.names
    has_published = any(group.published for group in groups)
    rows = []
    for group in groups:
        row: list[Value] = [*finished.show_settings(group.settings), len(group.runs)]
        row.append(cell(score_group(experiment, group)))
        if has_difference:
            row.append(cell(difference_to_baseline(experiment, groups, group)))
        row.append(mean_cell(group.scores("test", experiment.metric)))
        if has_published:
            row.append(_published_cell(group))
        row.append(sum(run.result["seconds"] for run in group.runs) / 60)
        rows.append(tuple(row))
    sources = dict.fromkeys(group.published.source for group in groups if group.published)
    return Table(
        title=f"{title} on held-out compositions ({experiment.split}) after {' or '.join(map(str, steps))} steps",
        columns=(
            *finished.setting_columns,
            "seeds",
            title,
            *([f"above {baseline_name(experiment, groups)}"] if has_difference else []),
            "trained compositions",
            *(["paper"] if has_published else []),
            Column(name="minutes", format="fixed", digits=1),
        ),
        rows=tuple(rows),
        note=explain_intervals(groups) + "".join(f"\npaper: {source}" for source in sources),
    )


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
    return Table(
        title="Without training, on the same instances",
        columns=("strategy", metric_title(experiment, finished)),
        rows=rows,
        note="in brackets: the lowest and the highest of all runs"
        if any(len(set(v)) > 1 for v in values_of.values())
        else "",
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
            return None if other is group else difference_between(experiment, group, other)
    return None


def baseline_name(experiment: Experiment, groups: Sequence[Group]) -> str:
    first = next(group for group in groups if experiment.compared in group.settings)
    value = first.settings[experiment.compared or ""]
    return show_setting(value) if isinstance(value, str) else f"{show_setting(experiment.compared or '')} {value}"


def explain_intervals(groups: Sequence[Group], over: str = "compositions") -> str:
    """What the brackets of a table of scores are."""
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return f"in brackets: 95 % intervals over {over}; differences are paired by {over.rstrip('s')}"
    brackets = [
        *([f"95 % intervals over seeds and {over}"] if max(counts) > 2 else []),
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


def mean_cell(values: Sequence[Number | None]) -> Cell | None:
    """The mean over seeds, without an interval."""
    numbers = [value for value in values if value is not None]
    return Cell(value=fmean(numbers), values=tuple(numbers) if len(numbers) > 1 else ()) if numbers else None


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


def _published_cell(group: Group) -> Cell | None:
    published = group.published
    return None if published is None else Cell(value=published.value, error=published.error)
