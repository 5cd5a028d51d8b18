"""Numbers printed in On Provable Length and Compositional Generalization (arXiv 2402.04875), students of limited capacity.

Tables of the experiments on sequence teachers: error against length, linear identification, over seeds.

Runs that differ in their seed are one row: the median over seeds with the lowest and the highest. Single seeds can be off by
orders of magnitude and would dominate a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from recombine.foundation import Cell, Column, Format, Table, Value
from recombine.sweeps import Finished, Group, spread
from recombine.training import Json, RunDirectory
from recombine_papers.calculation import log10_of
from recombine_papers.length.identification import identify_run

LOG10_ERROR = (-7.0, -4.0)  # of the squared error at any length up to 100
R2 = (0.96, 0.99)  # of the teacher's hidden states from a linear map of the student's
SOURCE = "squared error 1e-7 to 1e-4 at every length up to 100; R² of the linear map 0.96 to 0.99"
PAPER = "arXiv 2402.04875"
ABSTRACT = f"{PAPER}, abstract"

LENGTHS = (10, 20, 50, 100)
DRAWN_LENGTHS = (1, 2, 5, 10, 20, 50, 100)
KINDS = ("transfer", "refit", "permutation")
NUM_SEQUENCES = 2_000  # to fit a map, and as many to score it
SEED_NOTE = "median over seeds, in brackets the lowest and the highest"
RATIO_NOTE = "ratio: to the squared error of the best constant at that position; 1 is no better than the constant"
WORST_NOTE = "worst two: share of the error at the last T due to the two worst outputs"

Identified = Sequence[tuple[Group, Sequence[Json]]]  # what identification found in each seed of a group


def tabulate_lengths(finished: Finished, device: str, *, with_published: bool = False) -> list[Table]:
    """Error and its ratio to the constant at each length, then identification before and after training."""
    groups = identify_groups(finished, device)
    return [
        tabulate_loss(finished, groups, with_published=with_published),
        tabulate_ratio(finished, groups),
        tabulate_identification(finished, groups, with_published=with_published),
    ]


def tabulate_corners(finished: Finished) -> list[Table]:
    """Scores on the training distribution and on the corners, both at the last token."""
    rows: list[tuple[Value, ...]] = []
    for group in finished.groups:
        row: list[Value] = [*finished.show_settings(group.settings)]
        for split in ("test", "ood"):
            row.append(spread(group.scores(split, "loss"), "median"))
            row.append(spread([1 - r2 for r2 in group.scores(split, "r2")], "median"))
        rows.append(tuple(row))
    columns = [Column(name=name, format="scientific") for name in ("ID", "ID ratio", "OOD", "OOD ratio")]
    return [
        Table(
            title="Squared error where trained (ID) and in the corners (OOD)",
            columns=(*finished.setting_columns, *columns),
            rows=tuple(rows),
            note=f"{SEED_NOTE}\n{RATIO_NOTE}",
        )
    ]


def read_identification(run: RunDirectory, device: str = "auto") -> Json:
    """Linear identification of a student, before and after training; measured once."""
    return identify_run(run.path, num_sequences=NUM_SEQUENCES, device=device)


def ratio_to_constant(found: Json, length: int) -> float | None:
    """The error of a trained student at a length, divided by that of the best constant; None if that is 0."""
    error, constant = (float(found["trained"][name][length - 1]) for name in ("loss", "constant_loss"))
    return error / constant if constant else None


def read_lengths(run: RunDirectory, device: str) -> dict[str, float]:
    """Error, its ratio to the best constant, and R² of the linear map: at the longest length, and for figures at some others.

    `missed` is 1 − R². Where a teacher's outputs do not vary at all, no constant errs, and there is no ratio.
    """
    found, last = read_identification(run, device), LENGTHS[-1] - 1
    trained, untrained = found["trained"], found["untrained"]
    numbers = {"log10_error": log10_of(trained["loss"][last])}
    if (ratio := ratio_to_constant(found, LENGTHS[-1])) is not None:
        numbers["log10_ratio"] = log10_of(ratio)
    if "transfer" in trained["r2"]:
        numbers |= {
            "identified": trained["r2"]["transfer"][last],
            "identified_before": untrained["r2"]["transfer"][last],
        }
    for length in DRAWN_LENGTHS:
        numbers[f"error_{length}"] = trained["loss"][length - 1]
        if (ratio := ratio_to_constant(found, length)) is not None:
            numbers[f"ratio_{length}"] = ratio
        if "transfer" in trained["r2"]:
            numbers[f"missed_{length}"] = 1 - trained["r2"]["transfer"][length - 1]
            numbers[f"missed_before_{length}"] = 1 - untrained["r2"]["transfer"][length - 1]
    return numbers


def tabulate_measured(finished: Finished) -> Table:
    """Error and ratio at 10 and 100 tokens, and R² of the hidden states before and after training, medians over seeds."""
    rows: list[tuple[Value, ...]] = []
    for group in finished.groups:
        errors = [
            spread(group.measured(f"{name}_{length}"), "median") for name in ("error", "ratio") for length in (10, 100)
        ]
        identified = [spread(group.measured(name), "median") for name in ("identified_before", "identified")]
        rows.append((*finished.show_settings(group.settings), len(group.runs), *errors, *identified))
    scientific: Format = "scientific"
    names = ("error, T = 10", "error, T = 100", "ratio, T = 10", "ratio, T = 100")
    return Table(
        title="Squared error, its ratio to the best constant, and R² of the teacher's hidden states at 100 tokens",
        columns=(
            *finished.setting_columns,
            "seeds",
            *(Column(name=name, format=scientific) for name in names),
            "R² before",
            "R² after",
        ),
        rows=tuple(rows),
        note=f"{SEED_NOTE}\n{RATIO_NOTE}",
    )


def identify_groups(finished: Finished, device: str = "auto") -> Identified:
    """What identification finds in each run, by group."""
    measured = finished.measure(lambda run: read_identification(run, device))
    return [(group, [measured[run.run.path] for run in group.runs]) for group in finished.groups]


def tabulate_loss(finished: Finished, groups: Identified, *, with_published: bool) -> Table:
    def loss(found: Json, length: int) -> float:
        return float(found["trained"]["loss"][length - 1])

    note = f"{SEED_NOTE}\npaper: {SOURCE}" if with_published else SEED_NOTE
    return _by_length("Squared error at the last of T tokens", finished, groups, loss, note)


def tabulate_ratio(finished: Finished, groups: Identified) -> Table:
    def worst(found: Sequence[Json]) -> float:
        return median(seed["trained"]["worst_share"][LENGTHS[-1] - 1] for seed in found)

    note = f"{SEED_NOTE}\n{RATIO_NOTE}\n{WORST_NOTE}"
    table = _by_length("Ratio to the best constant", finished, groups, ratio_to_constant, note)
    return Table(
        title=table.title,
        columns=(*table.columns, Column(name="worst two", format="percent")),
        rows=tuple((*row, worst(found)) for row, (_, found) in zip(table.rows, groups, strict=True)),
        note=note,
    )


def _by_length(
    title: str, finished: Finished, groups: Identified, value: Callable[[Json, int], float | None], note: str
) -> Table:
    scientific: Format = "scientific"
    rows: list[tuple[Value, ...]] = []
    for group, found in groups:
        cells = [spread([value(seed, length) for seed in found], "median") for length in LENGTHS]
        rows.append((*finished.show_settings(group.settings), *cells))
    columns = (
        *finished.setting_columns,
        *(Column(name=f"T = {length}", format=scientific) for length in LENGTHS),
    )
    return Table(title=title, columns=columns, rows=tuple(rows), note=note)


def tabulate_identification(finished: Finished, groups: Identified, *, with_published: bool) -> Table:
    """R² of the teacher's hidden states from the student's, one row before and one after training."""
    rows: list[tuple[Value, ...]] = []
    for group, found in groups:
        for state, name in (("untrained", "before"), ("trained", "after")):
            cells = [_median_r2(found, state, kind, length) for kind in KINDS for length in (LENGTHS[0], LENGTHS[-1])]
            rows.append((*finished.show_settings(group.settings), name, *cells))
    columns = (f"{kind}, T = {length}" for kind in KINDS for length in (LENGTHS[0], LENGTHS[-1]))
    note = (
        "medians over seeds; transfer: map fitted at trained lengths; refit: at T itself; "
        "permutation: units in another order, no map"
    )
    return Table(
        title="R² of the teacher's hidden states from the student's, before and after training",
        columns=(*finished.setting_columns, "training", *columns),
        rows=tuple(rows),
        note=f"{note}\npaper: {SOURCE}" if with_published else note,
    )


def _median_r2(found: Sequence[Json], state: str, kind: str, length: int) -> Cell | None:
    """None where a student has no such map."""
    if not all(kind in seed[state]["r2"] for seed in found):
        return None
    values = [float(seed[state]["r2"][kind][length - 1]) for seed in found]
    return Cell(value=median(values), values=tuple(values) if len(values) > 1 else ())
