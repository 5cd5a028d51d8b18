"""Sections about what happens inside the networks: verdict, decodability, latent codes, similarity, ablations, gallery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from recombine.report import inside_figures, swap_figures
from recombine.report.explorer import explorer_figure, read_map
from recombine.report.figures import Figure
from recombine.report.findings import DECODER_METRICS, READINGS, gather, read_decoders, read_diagnosis, read_similarity
from recombine.report.gallery import read_gallery
from recombine.report.interventions import Change, read_ablations, read_swap
from recombine.report.runs import ReportRun
from recombine.report.section import Section


def verdict_section(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_diagnosis)
    content = {"found": found, "problems": problems}
    return Section(name="verdict", title="Verdict", content=content) if found or problems else None


def decodability_section(runs: Sequence[ReportRun]) -> Section | None:
    """One panel a kind of site; one set of panels a metric and a way to read instances."""
    drawn: dict[str, Figure] = {}
    readings, all_problems = {}, []
    for key, described in READINGS.items():
        found, problems = gather(runs, partial(read_decoders, key=key))
        all_problems += problems
        if found:
            words = {_describe_reading(run, described) for run, _ in found}
            metrics = [
                metric
                for metric in DECODER_METRICS
                if any(metric in each.scores for _, sites in found for each in sites)
            ]
            kinds = list(dict.fromkeys(each.kind for _, sites in found for each in sites))
            readings[key] = {"words": " / ".join(sorted(words)), "found": found, "metrics": metrics, "kinds": kinds}
            drawn |= {
                f"{key}-{metric}-{kind}": inside_figures.decodability_figure(found, metric, kind)
                for metric in metrics
                for kind in kinds
            }
    content = {"readings": readings, "problems": list(dict.fromkeys(all_problems))}
    if not readings and not all_problems:
        return None
    return Section(name="decodability", title="Decodability", content=content, figures=drawn)


def _describe_reading(run: ReportRun, key: str) -> str:
    reading = run.read("probe.json").get("reading")
    return str(reading.get(key)) if isinstance(reading, dict) else "rows of a file"


def codes_section(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_map)
    content = {"found": found, "problems": problems}
    drawn = {"codes": explorer_figure(found)} if found else {}
    return Section(name="codes", title="Latent codes", content=content, figures=drawn) if found or problems else None


def similarity_section(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_similarity)
    drawn = {
        f"similarity-{run.series}-{site}-{kind}": inside_figures.similarity_figure(each["modules"], each[kind])
        for run, sites in found
        for site, each in sites.items()
        for kind in ("centred", "cosine")
    }
    sites = list(dict.fromkeys(site for _, each in found for site in each))
    content = {"found": found, "problems": problems, "sites": sites}
    return Section(name="similarity", title="Similarity", content=content, figures=drawn) if found or problems else None


def ablations_section(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_ablations)
    swaps, swap_problems = gather(runs, read_swap)
    drawn: dict[str, Figure] = {}
    for run, each in found:
        drawn[f"layers-{run.series}"] = inside_figures.layers_figure(run, each)
        for kind in dict.fromkeys(change.kind for change in each["heads"]):
            drawn[f"heads-{run.series}-{kind}"] = inside_figures.heads_figure(run, each, kind)
    for run, swap in swaps:
        draw = swap_figures.rules_figure if swap["kind"] == "rules" else swap_figures.functions_figure
        drawn |= {f"swap-{run.series}-{split}": draw(rows) for split, rows in swap["splits"].items()}
        drawn |= {
            f"by-rule-{run.series}-{split}": swap_figures.by_rule_figure(each)
            for split, each in swap["by_rule"].items()
        }
    content = {
        "found": found,
        "swaps": swaps,
        "kinds": list(dict.fromkeys(change.kind for _, each in found for change in each["heads"])),
        "runs": [run for run in runs if any(run is each for each, _ in [*found, *swaps])],
        "problems": list(dict.fromkeys(problems + swap_problems)),
    }
    if not any(content[name] for name in ("runs", "problems")):
        return None
    return Section(name="ablations", title="Ablations", content=content, figures=drawn)


def gallery_section(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_gallery)
    content = {"found": found, "problems": problems}
    return Section(name="gallery", title="Gallery", content=content) if found or problems else None


INSIDE_SECTIONS: tuple[Callable[[Sequence[ReportRun]], Section | None], ...] = (
    decodability_section,
    codes_section,
    similarity_section,
    ablations_section,
    gallery_section,
)


def _title_site(site: str) -> str:
    kind, _, layer = site.rpartition(".")
    return f"{kind}, layer {layer}" if kind and layer.isdigit() else site


def _by_head(changes: Sequence[Change]) -> dict[tuple[int, int | None], dict[str, Change]]:
    """{(layer, head): {kind: change}}."""
    heads: dict[tuple[int, int | None], dict[str, Change]] = {}
    for each in changes:
        heads.setdefault((each.layer, each.head), {})[each.kind] = each
    return heads


INSIDE_FILTERS: dict[str, Callable[..., Any]] = {
    "site": _title_site,
    "decoder": lambda metric: inside_figures.DECODER_TITLES[metric],
    "kind": lambda kind: inside_figures.KIND_TITLES.get(kind, kind),
    "zip": lambda first, second: list(zip(first, second, strict=True)),
    "by_head": lambda changes: list(_by_head(changes).items()),
    "selectin": lambda options, values: [each for each in options if each[0] in values],
    "capitalize_first": lambda text: text[:1].upper() + text[1:].rstrip("."),
}
