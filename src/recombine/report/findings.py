"""What was found inside runs, read from their `probe.json`, `probe.npz` and `diagnosis.json`.

These files may be missing, truncated, foreign or of another version. Each reader checks everything that is shown, and returns
None if its run has nothing to show. Its errors become sentences on the page (`gather`), and the rest of the page is built.

Effects of changing codes while a network runs: ablations and swaps, read from `probe.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from recombine.foundation.errors import InputError
from recombine.inside.result import DecoderKey, ProbeNumbers, ProbeResult, SiteDecoder
from recombine.report.read import ReportRun
from recombine.training.schema import Json

VERDICTS = {  # verdict of `diagnose` -> class of its badge
    "solved": "good",
    "ambiguous": "good",
    "inferred but unused": "middling",
    "not inferred": "bad",
    "not learned": "bad",
    "uncovered": "open",
}
UNINFORMED = ("majority", "control", "untrained")
READINGS: dict[DecoderKey, str] = {  # decoders in probe.json -> the key in `reading` that describes their instances
    "decoders": "instances",
    "decoders_pictured": "pictured",
    "decoders_same_query": "same_query",
}
DECODER_METRICS = ("f1", "accuracy", "auc", "exact", "r2")

T = TypeVar("T")
Found = list[tuple[ReportRun, T]]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Decoder scores at one site: {metric: {id, ood, majority, control, untrained}}, the last three on ood."""

    site: str
    kind: str
    layer: int | str
    scores: dict[str, dict[str, float | None]]


def gather(runs: Sequence[ReportRun], read: Callable[[ReportRun], T | None]) -> tuple[Found[T], list[str]]:
    """The value of each run that has one, and a sentence for each reason why files cannot be used."""
    found: Found[T] = []
    problems: dict[str, list[str]] = {}  # reason -> labels of runs
    for run in runs:
        try:
            value = read(run)
        except InputError as error:
            problems.setdefault(f"{error}.", []).append(run.label)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
            reason = f"{type(error).__name__} {error}".strip()
            problems.setdefault(f"this cannot be read ({reason}): expected what recombine probe writes.", []).append(
                run.label
            )
        else:
            if value is not None:
                found.append((run, value))
    every = len(runs) > 1
    return found, [
        f"{f'All {len(runs)} runs' if every and len(labels) == len(runs) else ', '.join(labels)}: {reason}"
        for reason, labels in problems.items()
    ]


def read_diagnosis(run: ReportRun) -> Json | None:
    diagnosis = _read_file(run, "diagnosis.json")
    if diagnosis is None:
        return None
    if diagnosis.get("verdict") not in VERDICTS:
        raise InputError(
            f"diagnosis.json has verdict {diagnosis.get('verdict')!r}: expected one of {', '.join(VERDICTS)}"
        )
    if not all(isinstance(diagnosis.get(key), str) for key in ("sentence", "advice")):
        raise InputError("diagnosis.json lacks its sentence or advice: expected what recombine diagnose writes")
    found = diagnosis.get("evidence", {})
    evidence: Json = {"metric": str(found.get("metric", ""))}
    for name in ("trained", "held_out", "decodability"):
        evidence[name] = {
            key: str(value) if key in ("site", "metric") else as_number(value)
            for key, value in (found.get(name) or {}).items()
        }
    return {
        **{key: diagnosis[key] for key in ("verdict", "sentence", "advice")},
        "alternatives": [str(each) for each in diagnosis.get("alternatives", ())],
        "evidence": evidence,
        "news": VERDICTS[diagnosis["verdict"]],
    }


def read_probe(run: ReportRun) -> ProbeNumbers | None:
    """The numbers of the probe of the current checkpoint; an error if the stored ones cannot be used."""
    result = ProbeResult.read(run.directory)
    return None if result is None else result.numbers


def read_part(run: ReportRun, name: str, *, step: str | None = None) -> Json | None:
    """A part of `probe.json`. If the whole file is broken, only `read_decoders` reports it."""
    try:
        probe = read_probe(run)
    except InputError:
        return None
    if probe is None:
        return None
    if name not in probe:
        reason = probe.get("skipped", {}).get(step or name)
        if reason:
            raise InputError(f"not measured: {reason}")
        return None
    return {"probe": probe, name: cast(Json, probe)[name]}


def _read_file(run: ReportRun, name: str) -> Json | None:
    try:
        return run.read(name) or None
    except InputError:  # its message contains a local path, which does not belong in a report
        raise InputError(f"{name} cannot be read: expected the JSON object that Recombine writes") from None


def read_decoders(run: ReportRun, key: DecoderKey) -> list[Decoded] | None:
    probe = read_probe(run)
    if probe is None:
        return None
    if key not in probe:
        reason = probe.get("skipped", {}).get("decode", "nothing was decoded")
        if key == "decoders":
            raise InputError(f"not measured: {reason}")
        return None
    places = {site["name"]: (site["kind"], site["layer"]) for site in probe["sites"]}
    decoded = []
    for site, decoder in probe[key].items():  # type: ignore[literal-required]
        kind, layer = places.get(site, ("site", None))
        place = ("site", site) if layer is None else (kind, layer)
        decoded.append(Decoded(site=site, kind=place[0], layer=place[1], scores=_read_scores(decoder)))
    return decoded


def _read_scores(decoder: SiteDecoder) -> dict[str, dict[str, float | None]]:
    """{metric: {id, ood, majority, control, untrained}}, without metrics that have no score."""
    ood: Json = cast(Json, decoder.get("ood", {}))
    rows: Json = {"id": decoder.get("id", {}), "ood": ood} | {name: ood.get(name, {}) for name in UNINFORMED}
    scores = {metric: {name: row.get(metric) for name, row in rows.items()} for metric in DECODER_METRICS}
    return {metric: values for metric, values in scores.items() if any(value is not None for value in values.values())}


def read_similarity(run: ReportRun) -> dict[str, Json] | None:
    """{site: {modules, cosine, centred}}, the matrices square."""
    part = read_part(run, "similarity", step="structure")
    if part is None:
        return None
    for site, similarity in part["similarity"].items():
        for name in ("centred", "cosine"):
            if {len(similarity[name]), *map(len, similarity[name])} - {len(similarity["modules"])}:
                raise InputError(
                    f"the similarity of {site} is not square: expected {len(similarity['modules'])} rows and columns"
                )
    return part["similarity"] or None


def as_number(value: object) -> float | None:
    """A number from a file; anything else is an error."""
    if value is None or isinstance(value, (int, float)):
        return None if value is None else float(value)
    raise InputError(f"a value is {value!r:.40}: expected a number")


SWAP_COLUMNS = {"rules": ("own", "other", "neither", "same_rule"), "functions": ("follows",)}


@dataclass(frozen=True, kw_only=True)
class Change:
    """The effect of an ablation on the score of each split: (change, low, high)."""

    layer: int
    head: int | None
    kind: str
    splits: dict[str, tuple[float, float, float]]


def read_ablations(run: ReportRun) -> Json | None:
    """{metric, base, layers, heads}, the last two as lists of `Change`."""
    part = read_part(run, "ablations", step="ablate")
    if part is None:
        return None
    ablations = part["ablations"]
    base = {split: ablations["base"].get(split) for split in ("test", "ood")}
    splits = [split for split, value in base.items() if value is not None]
    changes = {name: [_change(row, splits) for row in ablations[name]] for name in ("layers", "heads")}
    return {"metric": ablations["metric"], "base": base, **changes}


def read_swap(run: ReportRun) -> Json | None:
    part = read_part(run, "swap")
    if part is None:
        return None
    swap = part["swap"]
    columns = SWAP_COLUMNS[swap["kind"]]
    splits: Json = {}
    for split in ("ood", "test"):
        if split in swap["splits"]:
            results = swap["splits"][split]
            rows = [({"words": _describe_arm(arm)}, arm) for arm in results["arms"]]
            if "base" in results:
                rows.insert(0, ({"words": "no swap"}, results["base"]))
            splits[split] = [
                words | {name: row.get(name) for name in columns} | {"interval": tuple(row["interval"])}
                for words, row in rows
            ]
    by_rule = {split: _read_matrix(swap, split) for split in splits if swap["splits"][split].get("by_rule")}
    what = (
        "rule" if swap.get("rules") else "answer"
    )  # codes are swapped between rules that have names, or between answers
    return {"kind": swap["kind"], "what": what, "columns": columns, "splits": splits, "by_rule": by_rule}


def _read_matrix(swap: Json, split: str) -> Json:
    """How often the answer follows, by own rule (row) and swapped-in rule; rules without an instance are left out."""
    rules, matrix = swap["rules"], swap["splits"][split]["by_rule"]
    if {len(matrix), *map(len, matrix)} - {len(rules)}:
        raise InputError(f"the table of swapped rules is not square: expected {len(rules)} rows and columns")
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


def _change(row: Json, splits: Sequence[str]) -> Change:
    values = {split: tuple(float(row[split][key]) for key in ("change", "low", "high")) for split in splits}
    return Change(layer=row["layer"], head=row.get("head"), kind=row["kind"], splits=values)  # type: ignore[arg-type]
