"""Evidence from inside the networks, as the page shows it: verdict, decoders, map of codes, similarity, ablations, swaps, gallery.

Each reader returns None if its run has nothing to show. `gather` turns the error of a reader, such as that of a damaged file,
into a sentence on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, TypeVar, cast

import numpy as np
import torch

from recombine.foundation.errors import InputError, find_schema_error
from recombine.inside.result import DECODER_TITLES, PROBE, DecoderKey, ProbeNumbers, SiteDecoder, read_arrays
from recombine.inside.verdict import Evidence, Verdict
from recombine.report.runs import ReportRun
from recombine.tasks.view import Card
from recombine.training.benchmark import load_run
from recombine.training.directory import CHECKPOINT
from recombine.training.schema import Json

BADGES = {  # verdict of `diagnose` -> class of its badge
    "solved": "good",
    "ambiguous": "good",
    "inferred but unused": "middling",
    "not inferred": "bad",
    "not learned": "bad",
    "uncovered": "open",
}
UNINFORMED = ("majority", "control", "untrained")
SWAP_COLUMNS = {"rules": ("own", "other", "neither", "same_rule"), "functions": ("follows",)}
MAX_MAPPED = 1_500  # points per map, limited by how fast a browser draws them
RESOLUTION = 1_000  # steps of a coordinate; t-SNE has no units
NUM_EVALUATED = 64  # instances on which the network is evaluated for the gallery
NUM_SHOWN = 4  # of the right answers, and of the wrong ones

T = TypeVar("T")
Found = list[tuple[ReportRun, T]]
Diagnosed = tuple[ReportRun, Json]


def gather(runs: Sequence[ReportRun], read: Callable[[ReportRun], T | None]) -> tuple[Found[T], list[str]]:
    """The value of each run that has one, and a sentence for each reason why files cannot be used."""
    found: Found[T] = []
    problems: dict[str, list[str]] = {}  # reason -> labels of runs
    for run in runs:
        try:
            if (value := read(run)) is not None:
                found.append((run, value))
        except Exception as error:  # of a damaged file, a network or a task; the rest of the page is built
            reason = f"{error}." if isinstance(error, InputError) else f"this cannot be read ({type(error).__name__})."
            # local paths do not belong in a report
            shown = reason.replace(f"{run.directory.path}/", "").replace(str(run.directory.path), "the run")
            problems.setdefault(shown, []).append(run.label)
    return found, [
        f"{f'All {len(runs)} runs' if 1 < len(runs) == len(labels) else ', '.join(labels)}: {reason}"
        for reason, labels in problems.items()
    ]


class ShownDiagnosis(TypedDict):
    """The part of `diagnosis.json` that the page shows."""

    verdict: Verdict
    sentence: str
    advice: str
    evidence: Evidence
    alternatives: NotRequired[list[Verdict]]


def read_diagnosis(run: ReportRun) -> Json | None:
    diagnosis = run.read("diagnosis.json")
    if not diagnosis:
        return None
    if (fault := find_schema_error(diagnosis, ShownDiagnosis)) is not None:
        raise InputError(f"diagnosis.json is damaged: {fault}")
    needed = {key: diagnosis[key] for key in ("verdict", "sentence", "advice", "evidence")}
    return needed | {"alternatives": diagnosis.get("alternatives", []), "badge": BADGES[diagnosis["verdict"]]}


def read_probe(run: ReportRun) -> ProbeNumbers | None:
    """The numbers of the probe of the current checkpoint; an error if the stored ones cannot be used."""
    return cast(ProbeNumbers | None, PROBE.load_current(run.directory))


def _read_part(run: ReportRun, name: str, *, step: str | None = None) -> tuple[ProbeNumbers, Json] | None:
    """The numbers of a probe and one part of them. If the whole file is broken, only `read_decoders` reports it."""
    try:
        probe = read_probe(run)
    except InputError:
        return None
    if probe is None:
        return None
    if name not in probe and (reason := probe.get("skipped", {}).get(step or name)):
        raise InputError(f"not measured: {reason}")
    return (probe, cast(Json, probe)[name]) if name in probe else None


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Decoder scores at one site: {metric: {id, ood, majority, control, untrained}}, the last three on ood."""

    site: str
    kind: str
    layer: int | str
    scores: dict[str, dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class DecodedReading:
    """What is decoded from some instances: the instances, and the decoder at each site."""

    instances: str
    sites: list[Decoded]


def read_decoders(run: ReportRun) -> dict[str, DecodedReading] | None:
    """The decoders of the task's reading, and of each of its variants (`decoders_NAME` in `probe.json`)."""
    probe = read_probe(run)
    if probe is None:
        return None
    if "decoders" not in probe:
        raise InputError(f"not measured: {probe.get('skipped', {}).get('decode', 'nothing was decoded')}")
    described: Json = {"instances": "rows of a file", **(probe.get("reading") or {})}
    keys = {"decoders" if name == "instances" else f"decoders_{name}": words for name, words in described.items()}
    return {
        key: DecodedReading(instances=str(words), sites=_read_sites(probe, key))
        for key, words in keys.items()
        if key in probe
    }


def _read_sites(probe: ProbeNumbers, key: DecoderKey) -> list[Decoded]:
    decoders = cast(Json, probe)[key]
    if (fault := find_schema_error(decoders, dict[str, SiteDecoder])) is not None:
        raise InputError(f"{key} in probe.json is damaged: {fault}")
    places = {site["name"]: (site["kind"], site["layer"]) for site in probe["sites"]}
    decoded = []
    for site, decoder in decoders.items():
        kind, layer = places.get(site, ("site", None))
        place = ("site", site) if layer is None else (kind, layer)
        decoded.append(Decoded(site=site, kind=place[0], layer=place[1], scores=_read_scores(decoder)))
    return decoded


def describe_reading(run: ReportRun) -> str:
    """What is decoded, and which codes are read; empty for the rows of a file."""
    probe = read_probe(run)
    reading = None if probe is None else probe.get("reading")
    return f"Decoded: {reading['labels']}; from {reading['instances']}. Codes: {reading['codes']}." if reading else ""


def _read_scores(decoder: SiteDecoder) -> dict[str, dict[str, float | None]]:
    """{metric: {id, ood, majority, control, untrained}}, without metrics that have no score."""
    ood: Json = cast(Json, decoder.get("ood", {}))
    rows: Json = {"id": decoder.get("id", {}), "ood": ood} | {name: ood.get(name, {}) for name in UNINFORMED}
    scores = {metric: {name: row.get(metric) for name, row in rows.items()} for metric in DECODER_TITLES}
    return {metric: values for metric, values in scores.items() if any(value is not None for value in values.values())}


def read_similarity(run: ReportRun) -> dict[str, Json] | None:
    """{site: {modules, centred}}, the matrix square."""
    part = _read_part(run, "similarity", step="structure")
    return None if part is None else part[1] or None


def read_ablations(run: ReportRun) -> Json | None:
    """The ablations of the probe (`inside.result.Ablations`)."""
    part = _read_part(run, "ablations", step="ablate")
    return None if part is None else part[1]


def read_swap(run: ReportRun) -> Json | None:
    """{kind, what, columns, splits, by_rule}: rows of each split, and how often the answer follows each pair of rules."""
    part = _read_part(run, "swap")
    if part is None:
        return None
    swap = part[1]
    columns = SWAP_COLUMNS[swap["kind"]]
    splits: Json = {}
    for split in ("ood", "test"):
        if split in swap["splits"]:
            results = swap["splits"][split]
            rows = [("no swap", results["base"])] if "base" in results else []
            rows += [(_describe_arm(arm), arm) for arm in results["arms"]]
            splits[split] = [
                {"words": words, "interval": row["interval"]} | {name: row.get(name) for name in columns}
                for words, row in rows
            ]
    by_rule = {split: _read_matrix(swap, split) for split in splits if swap["splits"][split].get("by_rule")}
    what = "rule" if swap.get("rules") else "answer"  # codes are swapped between rules with names, or between answers
    return {"kind": swap["kind"], "what": what, "columns": columns, "splits": splits, "by_rule": by_rule}


def _read_matrix(swap: Json, split: str) -> Json:
    """How often the answer follows, by own rule (row) and swapped-in rule; rules without an instance are left out."""
    rules, matrix = swap["rules"], swap["splits"][split]["by_rule"]
    rows = [i for i, row in enumerate(matrix) if any(value is not None for value in row)]
    columns = [j for j in range(len(rules)) if any(row[j] is not None for row in matrix)]
    return {
        "rows": [rules[i] for i in rows],
        "columns": [rules[j] for j in columns],
        "values": [[matrix[i][j] for j in columns] for i in rows],
    }


def _describe_arm(arm: Json) -> str:
    layers = arm["layers"]
    where = f"layer {layers[0]}" if len(layers) == 1 else "all layers"
    return where + (", all keys" if arm["keys"] == "all" else ", probed keys")


@dataclass(frozen=True, kw_only=True)
class EmbeddingMap:
    """The t-SNE map of one run: the place of each point at each site, at the resolution of a screen, and its labels."""

    sites: dict[str, np.ndarray]  # (points, 2), from 0 to RESOLUTION
    labels: np.ndarray  # (points, modules)
    unseen: np.ndarray
    composition: np.ndarray  # numbers in `compositions`
    target: np.ndarray
    modules: list[str]
    compositions: list[str]
    structure: dict[str, dict[str, dict[str, float | None]]]  # site, colour, purity and chance

    @property
    def binary(self) -> bool:
        return bool(np.isin(self.labels, (0, 1)).all())

    @property
    def single(self) -> bool:
        """Whether each point has exactly one module, so that all modules can be shown as colours."""
        return self.binary and bool((self.labels.sum(axis=1) == 1).all())

    @property
    def purest(self) -> str:
        """The site whose neighbourhoods are purest by module."""
        purity = {site: self.structure[site]["module"]["purity"] or 0.0 for site in self.sites}
        return max(purity, key=lambda site: purity[site])

    def pack(self) -> dict[str, Any]:
        """The map as JSON for the page, which draws one site and colouring at a time (`report.js`)."""
        ordinal = self.target.dtype.kind in "iu"
        target = self.target.astype(float).round(3)
        return {
            "sites": {site: places.tolist() for site, places in self.sites.items()},
            "labels": [np.flatnonzero(row).tolist() for row in self.labels] if self.binary else [],
            "unseen": self.unseen.astype(int).tolist(),
            "composition": self.composition.tolist(),
            "target": [int(value) if ordinal else value if math.isfinite(value) else None for value in target.tolist()],
            "modules": self.modules,
            "compositions": self.compositions,
        }


def read_map(run: ReportRun) -> EmbeddingMap | None:
    part = _read_part(run, "tsne")
    if part is None or not part[1]["sites"]:
        return None
    arrays, probe, structure = read_arrays(run.directory), part[0], cast(Json, part[0].get("structure", {}))
    columns = {name: arrays[f"sample.{name}"] for name in ("labels", "split", "composition", "target")}
    sites = {site: arrays[f"tsne.{site}"] for site in probe["tsne"]["sites"]}
    num_rows = len(columns["split"])
    if columns["target"].ndim != 1:
        columns["target"] = columns["target"][..., 0].reshape(num_rows)
    kept = np.arange(num_rows)[:: math.ceil(num_rows / MAX_MAPPED)]
    return EmbeddingMap(
        sites={site: _scale(places[kept]) for site, places in sites.items()},
        labels=columns["labels"][kept],
        unseen=columns["split"][kept] == "ood",
        composition=columns["composition"][kept],
        target=columns["target"][kept],
        modules=[str(name) for name in arrays["sample.modules"]],
        compositions=[str(words) for words in arrays["sample.compositions"]],
        structure={
            site: {
                colour: {
                    name: structure.get(site, {}).get(colour, {}).get(name)
                    for name in ("purity", "chance", "untrained")
                }
                for colour in ("target", "module")
            }
            for site in sites
        },
    )


def _scale(places: np.ndarray) -> np.ndarray:
    """Round to whole numbers, with equal steps in both directions, which preserves distances."""
    low, high = np.nanmin(places, axis=0), np.nanmax(places, axis=0)
    centred = (places - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return np.rint(np.nan_to_num(centred + 0.5) * RESOLUTION).astype(int)


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The cards of a run, and the number of right answers among all that were evaluated."""

    task: str
    right: list[Card]
    wrong: list[Card]
    num_right: int
    num_evaluated: int
    meaning: str  # of right


def read_gallery(run: ReportRun) -> Gallery | None:
    """The first instances of held-out compositions that a run gets right and wrong; the task judges and draws them.

    None if there is no checkpoint. Predictions are not stored, so the network is loaded.
    """
    if not (run.directory.path / CHECKPOINT).exists():
        return None
    _, config, model = load_run(run.directory.path, "cpu", code=run.code)
    task = config.task
    batch = task.sample("ood", 0, batch_size=NUM_EVALUATED)
    with torch.no_grad():
        answers, right = task.judge(model(batch.inputs), batch)
    chosen = [torch.nonzero(right == wanted)[:NUM_SHOWN, 0].tolist() for wanted in (True, False)]
    cards = [[task.card(batch, row, answers[row]) for row in rows] for rows in chosen]
    return Gallery(
        task=task.name,
        right=cards[0],
        wrong=cards[1],
        num_right=int(right.sum()),
        num_evaluated=NUM_EVALUATED,
        meaning=task.success_criterion,
    )
