"""What runs over several seeds say together: means of scores by setting, and whether decodability goes with success.

Decodability is the R² of ridge regression from the activations of a layer to the strengths of the modules, fitted on half of
the tasks of training compositions and scored on the other half and on held-out compositions (SC, arXiv 2507.07207).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from recombine.probe.measures.decodability import measure_decodability
from recombine.recipes.experiment import Runs, group_seeds
from recombine.store import Json, RunDirectory
from recombine.tasks.base import Audit

METRIC = "r2_pooled"
NUM_INSTANCES = 4_000  # a split, to read strengths from
SPLITS = {"test": "R² trained", "ood": "R² held out", "unknown": "R² more at once"}


def compare_seeds(runs: Runs, device: str = "auto") -> list[Audit]:
    """Mean and standard error over seeds, a row for each setting."""
    rows = []
    for setting, seeds in group_seeds(runs).items():
        results = [run.read_json("result.json") for run in seeds]
        certificates = [run.read_json("split.json")["certificate"] for run in seeds]
        rows.append(
            (
                setting,
                len(seeds),
                max(result["num_parameters"] for result in results),
                _span([certificate["num_train"] for certificate in certificates]),
                _verdict([certificate["covered"] for certificate in certificates]),
                _verdict([certificate["connected"] for certificate in certificates]),
                *(_mean([_score(result, split) for result in results]) for split in SPLITS),
                _mean([_score(result, "ood", "r2") for result in results]),
                round(sum(result["seconds"] for result in results) / 60, 1),
            )
        )
    columns = (
        "",
        "seeds",
        "parameters",
        "trained",
        "covered",
        "connected",
        *SPLITS.values(),
        "as published",
        "minutes",
    )
    note = (
        "R² pooled over outputs, mean ± standard error over seeds; `as published` is the published R² of held-out "
        "compositions; `more at once` has more modules in a task than any training task"
    )
    return [Audit(title="means over seeds", columns=columns, rows=tuple(rows), note=note)]


def correlate_decodability(runs: Runs, device: str = "auto") -> list[Audit]:
    """Each run's decodability beside its score, and their correlation."""
    found = {label: _decodability(run, device) for label, run in runs.items()}
    sites = list(dict.fromkeys(site for each in found.values() for site in each["sites"]))
    rows = tuple(
        (label, each["score"], *(value for site in sites for value in each["sites"].get(site, (math.nan, math.nan))))
        for label, each in found.items()
    )
    columns = ("", "R² held out", *(f"{site} {side}" for site in sites for side in ("id", "ood")))
    table = Audit(
        title="how well the strengths of modules can be read from each layer",
        columns=columns,
        rows=rows,
        note="R², pooled over the modules that are trained",
    )
    return [table, _correlate(found, sites)]


def _correlate(found: Mapping[str, Json], sites: list[str]) -> Audit:
    """Over all runs, and over those whose training compositions cover all modules and connect them."""
    from scipy.stats import pearsonr, spearmanr

    rows = []
    for site in sites:
        for which in ("all", "covered and connected"):
            pairs = [
                (each["sites"][site][1], each["score"])
                for each in found.values()
                if site in each["sites"] and (which == "all" or each["fair"])
            ]
            distinct = list(dict.fromkeys(pairs))  # one run may have several labels
            if len(distinct) < 3:
                continue
            decodable, scores = zip(*distinct, strict=True)
            pearson, spearman = pearsonr(decodable, scores), spearmanr(decodable, scores)
            rows.append((site, which, len(distinct), float(pearson[0]), float(spearman[0]), float(spearman[1])))
    return Audit(
        title="decodability on held-out compositions and score on them, over runs",
        columns=("layer", "training compositions", "runs", "Pearson", "Spearman", "p (Spearman)"),
        rows=tuple(rows),
    )


def _decodability(run: RunDirectory, device: str) -> Json:
    """The score of a run, whether its split is fair, and for each layer the decodability ID and OOD."""
    found = measure_decodability(run.path, num_instances=NUM_INSTANCES, device=device)
    sites = {site: (each["id"], each["ood"]) for site, each in found["sites"].items()}
    certificate = run.read_json("split.json")["certificate"]
    fair = certificate["covered"] and certificate["connected"]
    return {"score": _score(run.read_json("result.json"), "ood"), "fair": fair, "sites": sites}


def _score(result: Json, split: str, metric: str = METRIC) -> float:
    """A score, or NaN where the run has no such split."""
    return result["scores"].get(split, {}).get(metric, {}).get("value", math.nan)


def _mean(values: list[float]) -> str:
    if any(map(math.isnan, values)):
        return ""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}".replace("-", "−")


def _span(values: list[Any]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)}-{max(values)}"


def _verdict(values: list[bool]) -> str:
    return "yes" if all(values) else "NO" if not any(values) else "some"
