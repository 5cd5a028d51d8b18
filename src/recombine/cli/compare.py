"""recombine compare RUN RUN: paired differences between two runs that were scored on the same instances."""

from __future__ import annotations

from dataclasses import dataclass

from recombine.cli.flags import RunPath, split_legend, title_of
from recombine.cli.main import Output, parse
from recombine.foundation.display import Cell, Table
from recombine.training.comparison import compare_results, differing_settings, read_result
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json

NOTE = (
    "difference: first minus second, with its 95 % interval over compositions. Both runs are resampled on the same "
    "compositions, so the difference can be clear although the intervals of the two scores overlap."
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Output):
    """Print how much two runs differ, with intervals, on the same instances."""

    examples = (
        "recombine compare runs/sraven-hyla-0123456789ab runs/sraven-softmax-0123456789ab",
        "recombine compare runs/sraven-hyla-0123456789ab runs/sraven-softmax-0123456789ab --json",
    )

    first: RunPath
    """Run directory of a finished run."""
    second: RunPath
    """Run directory of a finished run on the same task and seed."""


def run(argv: list[str]) -> None:
    options = parse(CompareOptions, argv, prog="compare")
    runs = [RunDirectory.open(path) for path in (options.first, options.second)]
    results = [read_result(directory) for directory in runs]
    rows = compare_results(*results)
    settings = differing_settings(runs)
    differences: dict[str, Json] = {}
    for row in rows:
        differences.setdefault(row["split"], {})[row["metric"]] = row
    value: Json = {
        "runs": [str(directory.path) for directory in runs],
        "settings": settings,
        "differences": differences,
    }
    options.show(value, tabulate_settings(settings), tabulate(rows, results[0]))


def tabulate_settings(settings: list[Json]) -> Table:
    """The settings in which the runs differ."""
    rows = tuple(
        (name, *("–" if of_run[name] is None else str(of_run[name]) for of_run in settings)) for name in settings[0]
    )
    return Table(title="settings that differ", columns=("setting", "first", "second"), rows=rows)


def tabulate(rows: list[Json], result: Json) -> Table:
    return Table(
        title="paired differences",
        columns=("split", "metric", "first", "second", "difference", "better"),
        rows=tuple(
            (
                row["split"],
                title_of(row["metric"], result.get("metrics")),
                row["first"],
                row["second"],
                Cell(**row["difference"]),
                row["better"] or "not clear",
            )
            for row in rows
        ),
        note=f"{NOTE}\n{split_legend(dict.fromkeys(row['split'] for row in rows), result.get('splits'))}",
    )
