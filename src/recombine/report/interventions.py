"""Effects of changing codes while a network runs: ablations and swaps, read from `probe.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recombine.errors import InputError
from recombine.report.findings import as_number, read_part
from recombine.report.runs import ReportRun
from recombine.store import Json

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
    base = {split: as_number(ablations["base"].get(split)) for split in ("test", "ood")}
    splits = [split for split, value in base.items() if value is not None]
    changes = {name: [_change(row, splits) for row in ablations[name]] for name in ("layers", "heads")}
    return {"metric": str(ablations["metric"]), "base": base, **changes}


def read_swap(run: ReportRun) -> Json | None:
    part = read_part(run, "swap")
    if part is None:
        return None
    swap = part["swap"]
    if swap["kind"] not in SWAP_COLUMNS:
        raise InputError(f"the swap experiment is of kind {swap['kind']!r}: expected rules or functions")
    columns = SWAP_COLUMNS[swap["kind"]]
    splits: Json = {}
    for split in ("ood", "test"):
        if split in swap["splits"]:
            results = swap["splits"][split]
            rows = [({"words": _describe_arm(arm)}, arm) for arm in results["arms"]]
            if "base" in results:
                rows.insert(0, ({"words": "no swap"}, results["base"]))
            splits[split] = [
                words | {name: as_number(row.get(name)) for name in columns} | {"interval": _read_interval(row)}
                for words, row in rows
            ]
    by_rule = {split: _read_matrix(swap, split) for split in splits if swap["splits"][split].get("by_rule")}
    what = (
        "rule" if swap.get("rules") else "answer"
    )  # codes are swapped between rules that have names, or between answers
    return {"kind": swap["kind"], "what": what, "columns": columns, "splits": splits, "by_rule": by_rule}


def _read_interval(row: Json) -> tuple[float | None, float | None]:
    low, high = row.get("interval") or (None, None)
    return as_number(low), as_number(high)


def _read_matrix(swap: Json, split: str) -> Json:
    """How often the answer follows, by own rule (row) and swapped-in rule; rules without an instance are left out."""
    rules = [str(rule) for rule in swap["rules"]]
    matrix = [[as_number(value) for value in row] for row in swap["splits"][split]["by_rule"]]
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
    layers = [int(layer) for layer in arm["layers"]]
    where = f"layer {layers[0]}" if len(layers) == 1 else "all layers"
    return where + (", all keys" if arm["keys"] == "all" else ", probed keys")


def _change(row: Json, splits: Sequence[str]) -> Change:
    values = {split: tuple(float(row[split][key]) for key in ("change", "low", "high")) for split in splits}
    head = None if row.get("head") is None else int(row["head"])
    return Change(layer=int(row["layer"]), head=head, kind=str(row["kind"]), splits=values)  # type: ignore[arg-type]
