"""What happened when codes were changed while a network ran: ablations and swaps, read from `probe.json`."""

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
    """What an ablation does to the score of each split: (change, low, high)."""

    layer: int
    head: int | None
    kind: str
    splits: dict[str, tuple[float, float, float]]


def read_ablations(run: ReportRun) -> Json | None:
    """{metric, base, layers, heads}, the last two as lists of `Change`."""
    part = read_part(run, "ablations", step="ablate")
    if part is None:
        return None
    found = part["ablations"]
    base = {split: as_number(found["base"].get(split)) for split in ("test", "ood")}
    splits = [split for split, value in base.items() if value is not None]
    changes = {name: [_change(row, splits) for row in found[name]] for name in ("layers", "heads")}
    return {"metric": str(found["metric"]), "base": base, **changes}


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
            each = swap["splits"][split]
            rows = [({"words": _describe_arm(arm)}, arm) for arm in each["arms"]]
            if "base" in each:
                rows.insert(0, ({"words": "no swap"}, each["base"]))
            splits[split] = [words | {name: as_number(row.get(name)) for name in columns} for words, row in rows]
    return {"kind": swap["kind"], "columns": columns, "splits": splits}


def _describe_arm(arm: Json) -> str:
    layers = [int(layer) for layer in arm["layers"]]
    where = f"layer {layers[0]}" if len(layers) == 1 else "all layers"
    return where + (", all keys" if arm["keys"] == "all" else ", probed keys")


def _change(row: Json, splits: Sequence[str]) -> Change:
    values = {split: tuple(float(row[split][key]) for key in ("change", "low", "high")) for split in splits}
    head = None if row.get("head") is None else int(row["head"])
    return Change(layer=int(row["layer"]), head=head, kind=str(row["kind"]), splits=values)  # type: ignore[arg-type]
