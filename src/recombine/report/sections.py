"""The sections of the page, in their order.

A section is a function from the runs to a `Section`, or to None if there is nothing to show. Its template is
`templates/<name>.html`, or text in the `Section` itself. A new section is such a function, added to `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recombine.report import figures
from recombine.report.figures import Draw
from recombine.report.findings import (
    Found,
    describe_reading,
    gather,
    read_ablations,
    read_decoders,
    read_diagnosis,
    read_gallery,
    read_map,
    read_similarity,
    read_swap,
)
from recombine.report.runs import ReportRun, list_metrics, list_splits
from recombine.training.comparison import differing_settings
from recombine.training.schema import Json


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: its anchor, the content for its template, and its figures, each drawn when it is needed."""

    name: str
    title: str
    content: Json = field(default_factory=dict)
    figures: Mapping[str, Draw] = field(default_factory=dict)
    template: str | None = None


Builder = Callable[[Sequence[ReportRun]], Section | None]


def _make_section(
    name: str,
    title: str,
    gathered: tuple[Found[Any], list[str]],
    figures: Mapping[str, Draw] | None = None,
    **more: Any,
) -> Section | None:
    """A section of what was found in runs and of the problems with their files; None without either."""
    found, problems = gathered
    if not found and not problems:
        return None
    return Section(
        name=name, title=title, content={"found": found, "problems": problems, **more}, figures=figures or {}
    )


def show_verdict(runs: Sequence[ReportRun]) -> Section | None:
    """The verdict on each run, with its evidence."""
    return _make_section("verdict", "Verdict", gather(runs, read_diagnosis))


def show_scores(runs: Sequence[ReportRun]) -> Section | None:
    """Scores with their intervals, between chance and ceiling."""
    metrics, splits = list_metrics(runs), list_splits(runs)
    if not metrics:
        return None
    references = {
        (metric, split): {
            (score.chance, score.ceiling) for run in runs if run.result and (score := run.score(split, metric))
        }
        for metric in metrics
        for split in splits
    }
    meanings = {split: [run.describe("splits", split, "meaning") for run in runs] for split in splits}
    content = {
        "metrics": metrics,
        "splits": splits,
        "shared": {key: next(iter(pairs)) for key, pairs in references.items() if len(pairs) == 1},
        "meanings": {
            split: list(dict.fromkeys(filter(None, texts))) for split, texts in meanings.items() if any(texts)
        },
    }
    drawn = {f"scores-{metric}": partial(figures.draw_scores, runs, metric) for metric in metrics}
    return Section(name="scores", title="Scores", content=content, figures=drawn)


def show_curves(runs: Sequence[ReportRun]) -> Section | None:
    """Training loss, and scores during training."""
    if not any(run.metrics[0] for run in runs):
        return None
    drawn: dict[str, Draw] = {"loss": partial(figures.draw_loss, runs)}
    drawn |= {f"curves-{metric}": partial(figures.draw_curves, runs, metric) for metric in list_metrics(runs)}
    return Section(name="curves", title="Learning curves", content={"metrics": list_metrics(runs)}, figures=drawn)


def show_decodability(runs: Sequence[ReportRun]) -> Section | None:
    """Which modules a linear decoder reads from each layer; one figure per reading and metric."""
    found, problems = gather(runs, read_decoders)
    if not found and not problems:
        return None
    drawn: dict[str, Draw] = {}
    readings = {}
    for key in dict.fromkeys(key for _, decoded in found for key in decoded):
        here = [(run, decoded[key].sites) for run, decoded in found if key in decoded]
        words = {decoded[key].instances for _, decoded in found if key in decoded}
        metrics = list(dict.fromkeys(metric for _, sites in here for site in sites for metric in site.scores))
        readings[key] = {"words": " / ".join(sorted(words)), "found": here, "metrics": metrics}
        drawn |= {f"{key}-{metric}": partial(figures.draw_decoders, here, metric) for metric in metrics}
    subjects = dict.fromkeys(filter(None, (describe_reading(run) for run, _ in found)))
    content = {"readings": readings, "subjects": list(subjects), "problems": problems}
    return Section(name="decodability", title="Decodability", content=content, figures=drawn)


def show_codes(runs: Sequence[ReportRun]) -> Section | None:
    """The map of latent codes. The page draws it itself; the figures are for files only."""
    found, problems = gather(runs, read_map)
    drawn: dict[str, Draw] = {
        f"codes-{run.series}": partial(figures.draw_map, code_map, figures.label_of(run)) for run, code_map in found
    }
    if len(runs) > 1 and found:
        drawn["codes-last"] = partial(figures.draw_last_maps, found)
    return _make_section(
        "codes",
        "Latent codes",
        (found, problems),
        drawn,
        sites=list(dict.fromkeys(site for _, code_map in found for site in code_map.sites)),
        modules=list(dict.fromkeys(name for _, code_map in found if code_map.binary for name in code_map.modules)),
        single=any(code_map.single for _, code_map in found),
        maps={str(run.series): code_map.pack() for run, code_map in found},
    )


def show_similarity(runs: Sequence[ReportRun]) -> Section | None:
    """How similar the mean codes of the modules are."""
    found, problems = gather(runs, read_similarity)
    drawn: dict[str, Draw] = {
        f"similarity-{run.series}": partial(figures.draw_similarities, list(sites.items()), figures.label_of(run))
        for run, sites in found
    }
    if len(runs) > 1 and found:
        last = [(run.label, list(sites.values())[-1]) for run, sites in found]
        drawn["similarity-last"] = partial(figures.draw_similarities, last)
    return _make_section("similarity", "Similarity", (found, problems), drawn)


def show_ablations(runs: Sequence[ReportRun]) -> Section | None:
    """What happens to the answer when codes are ablated or swapped."""
    found, problems = gather(runs, read_ablations)
    swaps, swap_problems = gather(runs, read_swap)
    drawn: dict[str, Draw] = {
        f"ablations-{run.series}": partial(figures.draw_ablations, run, ablations) for run, ablations in found
    }
    for run, swap in swaps:
        label = figures.label_of(run)
        if swap["splits"]:
            drawn[f"swap-{run.series}"] = partial(figures.draw_swap, swap, label)
        if swap["by_rule"]:
            drawn[f"by-rule-{run.series}"] = partial(figures.draw_by_rule, swap["by_rule"], label)
    content = {
        "found": found,
        "swaps": swaps,
        "kinds": list(dict.fromkeys(row["kind"] for _, ablations in found for row in ablations["heads"])),
        "runs": [run for run in runs if any(run is shown for shown, _ in [*found, *swaps])],
        "problems": list(dict.fromkeys(problems + swap_problems)),
    }
    if not content["runs"] and not content["problems"]:
        return None
    return Section(name="ablations", title="Ablations", content=content, figures=drawn)


def show_gallery(runs: Sequence[ReportRun]) -> Section | None:
    """Instances of held-out compositions that each run gets right and wrong."""
    return _make_section("gallery", "Gallery", gather(runs, read_gallery))


def show_split(runs: Sequence[ReportRun]) -> Section | None:
    """The split and its certificate."""
    groups: dict[str, list[ReportRun]] = {}
    for run in runs:
        if run.certificate:
            groups.setdefault(str(run.certificate.get("sha256")), []).append(run)
    return Section(name="certificate", title="The split", content={"groups": groups}) if groups else None


def show_origin(runs: Sequence[ReportRun]) -> Section | None:
    """How the runs were made: settings, code and environment."""
    differing = differing_settings([run.directory for run in runs])[0]
    return Section(name="origin", title="How it was made", content={"differing": list(differing)})


SECTIONS: list[Builder] = [
    show_verdict,
    show_scores,
    show_curves,
    show_decodability,
    show_codes,
    show_similarity,
    show_ablations,
    show_gallery,
    show_split,
    show_origin,
]
