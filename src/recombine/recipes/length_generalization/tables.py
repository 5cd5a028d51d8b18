"""Tables of the experiments on sequence teachers: loss against length, linear identification, over seeds.

Runs that differ in their seed alone are one line of a table, the median over seeds with its range: single seeds may be off by
orders of magnitude, and would be all that a mean shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from recombine.probe.measures.identification import identify_run
from recombine.recipes.experiment import Runs, group_seeds
from recombine.store import Json
from recombine.tasks.base import Audit

LENGTHS = (10, 20, 50, 100)
NUM_SEQUENCES = 2_000  # to fit a map on, and as many to score it
PUBLISHED_LOSS = "1e-7 … 1e-4"
PUBLISHED_R2 = "0.96 … 0.99"
RATIO_NOTE = "ratio: to the squared error of the best constant of that position; 1 is no better than the constant"
WORST_NOTE = "worst two: share of the error at the last T that two outputs make"
SEED_NOTE = "median over seeds, with the lowest and the highest"


def length_tables(runs: Runs, device: str = "auto") -> list[Audit]:
    """Loss and its ratio to the constant at each length, then identification before and after training."""
    groups = identify_groups(runs, device)
    return [
        loss_table(groups, published=PUBLISHED_LOSS),
        ratio_table(groups),
        identification_table(groups, published=PUBLISHED_R2),
    ]


def capacity_tables(runs: Runs, device: str = "auto") -> list[Audit]:
    """The same, where the paper gives no figures."""
    groups = identify_groups(runs, device)
    return [loss_table(groups), ratio_table(groups), identification_table(groups)]


def composition_tables(runs: Runs, device: str = "auto") -> list[Audit]:
    """Scores on the training distribution and on the corners, both at the last token."""
    scores_of = {label: run.read_json("result.json")["scores"] for label, run in runs.items()}
    rows = []
    for label, each in group_seeds(scores_of).items():
        cells = [label.replace("_", " ")]
        for split in ("test", "ood"):
            cells.append(spread([scores[split]["loss"]["value"] for scores in each]))
            cells.append(spread([1 - scores[split]["r2"]["value"] for scores in each]))
        rows.append(tuple(cells))
    return [
        Audit(
            title="squared error where trained (ID) and in the corners (OOD)",
            columns=("", "ID", "ID ratio", "OOD", "OOD ratio"),
            rows=tuple(rows),
            note=f"{SEED_NOTE}; {RATIO_NOTE}",
        )
    ]


def identify_groups(runs: Runs, device: str) -> dict[str, list[Json]]:
    """What identification found in each run, by label without the seed."""
    found = {label: identify_run(run.path, num_sequences=NUM_SEQUENCES, device=device) for label, run in runs.items()}
    return group_seeds(found)


def loss_table(groups: Mapping[str, Sequence[Json]], *, published: str | None = None) -> Audit:
    return _by_length(
        "squared error at the last of T tokens", groups, lambda found, t: found["trained"]["loss"][t - 1], published
    )


def ratio_table(groups: Mapping[str, Sequence[Json]]) -> Audit:
    def ratio(found: Json, length: int) -> float:
        return found["trained"]["loss"][length - 1] / found["trained"]["constant_loss"][length - 1]

    table = _by_length("as a ratio to the best constant", groups, ratio, None, note=f"{RATIO_NOTE}; {WORST_NOTE}")
    worst = [median(found["trained"]["worst_share"][LENGTHS[-1] - 1] for found in each) for each in groups.values()]
    return replace(
        table,
        columns=(*table.columns, "worst two"),
        rows=tuple((*row, f"{share:.0%}") for row, share in zip(table.rows, worst, strict=True)),
    )


def _by_length(
    title: str,
    groups: Mapping[str, Sequence[Json]],
    value: Callable[[Json, int], float],
    published: str | None,
    note: str = SEED_NOTE,
) -> Audit:
    extra = () if published is None else ("paper",)
    rows = []
    for label, each in groups.items():
        cells = [spread([value(found, length) for found in each]) for length in LENGTHS]
        rows.append((label.replace("_", " "), *cells, *(() if published is None else (published,))))
    columns = ("", *(f"T = {length}" for length in LENGTHS), *extra)
    return Audit(title=title, columns=columns, rows=tuple(rows), note=note)


def identification_table(groups: Mapping[str, Sequence[Json]], *, published: str | None = None) -> Audit:
    """R² of the teacher's hidden states from the student's, before -> after training."""
    kinds = ("transfer", "refit", "permutation")
    columns = tuple(f"{kind}, T = {length}" for kind in kinds for length in (LENGTHS[0], LENGTHS[-1]))
    rows = []
    for label, each in groups.items():
        cells = []
        for kind in kinds:
            for length in (LENGTHS[0], LENGTHS[-1]):
                known = all(kind in found["trained"]["r2"] for found in each)
                cells.append(_before_after(each, kind, length) if known else "")
        rows.append((label.replace("_", " "), *cells, *(() if published is None else (published,))))
    return Audit(
        title="R² of the teacher's hidden states from the student's, before → after training",
        columns=("", *columns, *(() if published is None else ("paper",))),
        rows=tuple(rows),
        note="medians; transfer: fitted at trained lengths; refit: at T itself; permutation: units in another order, no map",
    )


def _before_after(found: Sequence[Json], kind: str, length: int) -> str:
    before, after = (
        median(each[state]["r2"][kind][length - 1] for each in found) for state in ("untrained", "trained")
    )
    return f"{format_r2(before)} → {format_r2(after)}"


def format_r2(value: float) -> str:
    """Enough digits to tell 0.999 from 1; far below 0 nothing is left to tell."""
    return f"{value:.3f}" if value > -10 else "< −10"


def spread(values: Sequence[float]) -> str:
    """The median, and the range where there is more than one value."""
    middle = f"{median(values):.1e}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.0e} … {max(values):.0e})"
