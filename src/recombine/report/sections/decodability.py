"""Decodability: which modules a linear decoder reads from each layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from recombine.inside.result import ReadingDescription
from recombine.report import figures as inside_figures
from recombine.report.figures import Figure
from recombine.report.findings import DECODER_METRICS, READINGS, gather, read_decoders, read_probe
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 40


def build(runs: Sequence[ReportRun]) -> Section | None:
    """One panel per kind of site; one set of panels per metric and reading."""
    drawn: dict[str, Figure] = {}
    readings, subjects, all_problems = {}, [], []
    for key, described in READINGS.items():
        found, problems = gather(runs, partial(read_decoders, key=key))
        all_problems += problems
        subjects += [_describe_subject(run) for run, _ in found]
        if found:
            words = {_describe_reading(run, described) for run, _ in found}
            metrics = [
                metric
                for metric in DECODER_METRICS
                if any(metric in decoder.scores for _, sites in found for decoder in sites)
            ]
            kinds = list(dict.fromkeys(decoder.kind for _, sites in found for decoder in sites))
            readings[key] = {"words": " / ".join(sorted(words)), "found": found, "metrics": metrics, "kinds": kinds}
            drawn |= {
                f"{key}-{metric}-{kind}": inside_figures.decodability_figure(found, metric, kind)
                for metric in metrics
                for kind in kinds
            }
    content = {
        "readings": readings,
        "subjects": list(dict.fromkeys(filter(None, subjects))),
        "problems": list(dict.fromkeys(all_problems)),
    }
    if not readings and not all_problems:
        return None
    return Section(name="decodability", title="Decodability", content=content, figures=drawn)


def _describe_subject(run: ReportRun) -> str:
    """What is decoded, and which codes are read."""
    reading = _read_reading(run)
    return f"Decoded: {reading['labels']}; from {reading['instances']}. Codes: {reading['codes']}." if reading else ""


def _describe_reading(run: ReportRun, key: str) -> str:
    reading = _read_reading(run)
    return str(reading.get(key)) if reading else "rows of a file"


def _read_reading(run: ReportRun) -> ReadingDescription | None:
    probe = read_probe(run)
    return None if probe is None else probe.get("reading")
