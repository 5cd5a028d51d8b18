"""Names of sites: the kind of activation and, where there are several, the number of the layer: `hidden.10`."""

from __future__ import annotations

from collections.abc import Iterable

from recombine.errors import InputError
from recombine.probe.schema import SiteInfo


def describe_site(name: str) -> SiteInfo:
    """The kind and the layer that a name stands for; the layer is None where the name has no number."""
    kind, _, layer = name.rpartition(".")
    return {"name": name, "kind": kind or name, "layer": int(layer) if layer.isdigit() else None}


def order_sites(names: Iterable[str]) -> list[str]:
    """Sites from the first layer to the last, with those without a layer in front; ties keep their order."""

    def number(name: str) -> int:
        layer = describe_site(name)["layer"]
        return -1 if layer is None else layer

    return sorted(names, key=number)


def last_site(names: Iterable[str]) -> str:
    """The site of the last layer: `hidden.10`, not `hidden.9`."""
    ordered = order_sites(names)
    if not ordered:
        raise InputError("there are no sites to choose the last of: expected at least one")
    return ordered[-1]
