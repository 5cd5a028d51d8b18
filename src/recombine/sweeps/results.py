"""The results of a sweep: one Parquet file and one CSV file with a row per run, and a table of the best runs.

Of several values of a searched hyperparameter, the best is the one with the highest mean over seeds of the main metric on
`test`, the trained compositions. `ood` never takes part in the choice; it is shown next to it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from recombine.foundation.display import Cell, Column, Number, Table
from recombine.foundation.files import replace_file
from recombine.sweeps.status import RunStatus, SweepStatus

PARQUET = "results.parquet"
CSV = "results.csv"
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
PARTS = ("value", "low", "high", "chance", "ceiling", "agnostic")

Key = tuple[tuple[str, Any], ...]


def write_results(status: SweepStatus, folder: Path) -> list[Path]:
    """Write both files; returns their paths."""
    import pyarrow
    from pyarrow import parquet

    rows = [describe_run(run) for run in status.runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pyarrow.table({name: _same_type([row.get(name) for row in rows]) for name in names})
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    replace_file(folder / PARQUET, content.getvalue().to_pybytes())
    text = io.StringIO()
    table_rows = (names, *zip(*table.to_pydict().values(), strict=True))
    csv.writer(text).writerows([list(map(as_cell, row)) for row in table_rows])
    replace_file(folder / CSV, text.getvalue().encode())
    return [folder / PARQUET, folder / CSV]


def as_cell(value: Any) -> Any:
    """A value for a CSV file; text that a spreadsheet would compute as a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value


def describe_run(run: RunStatus) -> dict[str, Any]:
    """A run as one row: settings, seed, state, and every score with its bounds, such as `test_r2` and `test_r2_low`."""
    row: dict[str, Any] = {
        "run": run.run,
        **run.settings,
        "seed": run.seed,
        "state": run.state,
        "error": run.error or None,
    }
    row |= {"step": run.step, "steps": run.steps}
    names = ("task", "model", "label", "num_parameters", "seconds", "steps_per_second", "split_sha256")
    row |= {name: run.result.get(name) for name in names}
    for split, metrics in run.result.get("scores", {}).items():
        for metric, score in metrics.items():
            for part in PARTS:
                row[f"{split}_{metric}" + ("" if part == "value" else f"_{part}")] = score.get(part)
    return row


def _same_type(values: list[Any]) -> list[Any]:
    """Values of one column: numbers if all are numbers, otherwise text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} or kinds <= {float, int}:
        return values if float not in kinds else [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def choose_best(status: SweepStatus) -> Table:
    """One row per combination of compared settings, with the hyperparameters that are best on `test`.

    Values of the hyperparameters take part with all their seeds, as long as any has them.
    """
    runs = status.select("finished")
    groups = _group(runs, searched=False)
    searched = list(dict.fromkeys(name for run in runs for name in run.searched))
    names = list(dict.fromkeys([*(name for key in groups for name, _ in key), *searched]))
    metrics = list(dict.fromkeys(run.metric for run in status.runs))
    planned = Counter(_key(run, searched=True) for run in status.runs)
    best: list[tuple[Sequence[RunStatus], int]] = []
    for members in groups.values():
        points = _group(members, searched=True)
        complete = [point for key, point in points.items() if len(point) == planned[key]]
        best.append((max(complete or points.values(), key=_merit), len(points)))
    best.sort(key=lambda choice: (metrics.index(choice[0][0].metric), -_merit(choice[0])))
    rows = tuple(
        (
            *(point[0].settings.get(name) for name in names),
            len(point),
            *([num_points] if searched else []),
            _mean(point, "test"),
            _mean(point, "ood"),
        )
        for point, num_points in best
    )
    titles: Mapping[str, Any] = runs[0].result.get("metrics", {}).get(metrics[0], {}) if runs else {}
    title = titles.get("title", metrics[0]) if len(metrics) == 1 else "main metric"
    chosen = "hyperparameters and order: chosen on test" if searched else "in order of test"
    return Table(
        title="Best of the grid" if searched else "Results",
        columns=(
            *(Column(name=name.replace("_", " "), format="plain") for name in names),
            "seeds",
            *(["points"] if searched else []),
            f"{title}, test",
            "ood",
        ),
        rows=rows,
        note=f"{chosen}, the seen compositions; ood has held-out compositions and is only shown. Means over seeds",
    )


def _key(run: RunStatus, *, searched: bool) -> Key:
    return tuple((name, value) for name, value in run.settings.items() if searched or name not in run.searched)


def _group(runs: Sequence[RunStatus], *, searched: bool) -> dict[Key, list[RunStatus]]:
    """Runs that differ in their seed only, or, without `searched`, also in their hyperparameters."""
    groups: dict[Key, list[RunStatus]] = {}
    for run in runs:
        groups.setdefault(_key(run, searched=searched), []).append(run)
    return groups


def _merit(runs: Sequence[RunStatus]) -> float:
    """The mean score on `test`, so that higher is better."""
    mean = _mean(runs, "test")
    return float("-inf") if mean is None else mean.value if runs[0].higher_is_better else -mean.value


def _mean(runs: Sequence[RunStatus], split: str) -> Cell | None:
    return mean_cell([run.score(split) for run in runs])


def mean_cell(values: Sequence[Number | None]) -> Cell | None:
    """The mean over seeds, without an interval."""
    numbers = [value for value in values if value is not None]
    return Cell(value=fmean(numbers), values=tuple(numbers) if len(numbers) > 1 else ()) if numbers else None
