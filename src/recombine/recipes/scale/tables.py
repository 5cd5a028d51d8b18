"""Tables of the scale experiments: means over seeds, and whether decodability goes with success.

Decodability is the R² of ridge regression from the activations of a layer to the strengths of the modules, fitted on half of
the tasks of training compositions and scored on the other half and on held-out compositions (arXiv 2507.07207).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recombine.probe.measures.decodability import measure_decodability
from recombine.recipes.comparison import cell, explain_intervals, mean_cell, spread
from recombine.recipes.experiment import Finished, FinishedRun, Group
from recombine.store import Json, RunDirectory
from recombine.tables import Cell, Column, Table, Value

METRIC = "r2_pooled"
NUM_INSTANCES = 4_000  # per split, to fit and score the decoders
SPLITS = {"test": "R² trained", "ood": "R² held out", "unknown": "R² more at once"}


def tabulate_seeds(finished: Finished) -> list[Table]:
    """Means over seeds, one row per setting."""
    rows: list[tuple[Value, ...]] = []
    for group in finished.groups:
        certificates = [run.certificate for run in group.runs]
        rows.append(
            (
                *finished.show_settings(group.settings),
                len(group.runs),
                max(run.result["num_parameters"] for run in group.runs),
                spread([certificate["num_train"] for certificate in certificates]),
                _all([certificate["covered"] for certificate in certificates]),
                _all([certificate["connected"] for certificate in certificates]),
                *(_score(group, split) for split in SPLITS),
                mean_cell(group.scores("ood", "r2")),
                sum(run.result["seconds"] for run in group.runs) / 60,
            )
        )
    columns: tuple[str | Column, ...] = (
        *finished.setting_columns,
        "seeds",
        "parameters",
        Column(name="trained", digits=0),
        "covered",
        "connected",
        *SPLITS.values(),
        "as published",
        Column(name="minutes", format="fixed", digits=1),
    )
    note = (
        f"R² pooled over outputs, {explain_intervals(finished.groups)}\n"
        "trained: training compositions; as published: R² of held-out compositions by the paper's definition\n"
        "more at once: tasks with more modules than any training task"
    )
    return [Table(title="Means over seeds", columns=columns, rows=tuple(rows), note=note)]


@dataclass(frozen=True)
class Readout:
    """The score of a run, whether its split is covered and connected, and the decodability ID and OOD of each layer."""

    score: float | None
    fair: bool
    sites: Mapping[str, tuple[float | None, float]]


def correlate_decodability(finished: Finished, device: str) -> list[Table]:
    """Decodability and score of each run, and their correlation."""
    measured = finished.measure(lambda run: read_decodability(run, device))
    readouts = {run.run.path: _read(run, measured[run.run.path]) for run in finished.runs}
    sites = list(dict.fromkeys(site for readout in readouts.values() for site in readout.sites))
    rows: list[tuple[Value, ...]] = []
    for run in finished.runs:
        readout = readouts[run.run.path]
        numbers = [value for site in sites for value in readout.sites.get(site, (None, None))]
        rows.append((*finished.show_settings(run.record.settings), run.record.seed, readout.score, *numbers))
    table = Table(
        title="How well the strengths of modules can be read from each layer",
        columns=(
            *finished.setting_columns,
            "seed",
            "R² held out",
            *(f"{site} {side}" for site in sites for side in ("id", "ood")),
        ),
        rows=tuple(rows),
        note="R², pooled over the modules that are trained",
    )
    return [table, _correlate(readouts, sites)]


def correlate_measured(finished: Finished) -> Table:
    """The correlation for the last hidden layer, from the numbers that `scale-decodability` keeps of each run."""
    readouts = {
        run.run.path: _read(run, {"sites": {"last hidden": {"id": None, "ood": run.measured["z_held_out"]}}})
        for run in finished.runs
        if "z_held_out" in run.measured
    }
    return _correlate(readouts, ["last hidden"])


def read_decodability(run: RunDirectory, device: str = "auto") -> Json:
    """How well strengths can be read from each layer; measured once."""
    return measure_decodability(run.path, num_instances=NUM_INSTANCES, device=device)


def _correlate(readouts: Mapping[Path, Readout], sites: Sequence[str]) -> Table:
    """Over all runs, and over those whose training compositions cover all modules and connect them."""
    from scipy.stats import pearsonr, spearmanr

    rows: list[tuple[Value, ...]] = []
    for site in sites:
        for which in ("all", "covered and connected"):
            pairs = [
                (readout.sites[site][1], readout.score)
                for readout in readouts.values()
                if site in readout.sites and (which == "all" or readout.fair)
            ]
            if len(pairs) < 3:
                continue
            decodable, scores = zip(*pairs, strict=True)
            pearson, spearman = pearsonr(decodable, scores), spearmanr(decodable, scores)
            rows.append((site, which, len(pairs), float(pearson[0]), float(spearman[0]), float(spearman[1])))
    return Table(
        title="Decodability and score on held-out compositions, over runs",
        columns=("layer", "training compositions", "runs", "Pearson", "Spearman", "p (Spearman)"),
        rows=tuple(rows),
    )


def _read(run: FinishedRun, decodability: Json) -> Readout:
    return Readout(
        score=run.score("ood", METRIC),
        fair=bool(run.certificate["covered"] and run.certificate["connected"]),
        sites={site: (scores["id"], scores["ood"]) for site, scores in decodability["sites"].items()},
    )


def _score(group: Group, split: str) -> Cell | None:
    """The score over seeds, or nothing where the runs have no such split."""
    if len(group.scores(split, METRIC)) < len(group.runs):
        return None
    return cell(group.score(split, METRIC))


def _all(values: Sequence[bool]) -> str:
    return "yes" if all(values) else "no" if not any(values) else "some"
