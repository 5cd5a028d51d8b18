"""Do the codes drive the answer? Change the latent codes while the model runs, and measure its score.

Three ablations of the codes of a whole layer, each at all key-query pairs:

- zero: the codes are 0, so attention adds nothing but a bias;
- mean: the codes are their mean over instances, so what is left does not depend on the instance;
- swap: each instance uses the codes of another instance, of another composition.

The first two are also applied to one head at a time. The effect of an ablation is the score with it minus the score without
it, on the same instances. Its 95 % interval comes from a bootstrap over compositions, as for every score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from recombine.evaluate import CompositionSums, compare
from recombine.kernels import CodeMap
from recombine.probe.collect import evaluating, rows_at_once
from recombine.probe.schema import SIDES, Ablation, Ablations, Change, Side
from recombine.progress import track
from recombine.tasks import Batch, Ratio, Task

MAX_INSTANCES = 500  # per split: there are many ablations to measure

Kind = Literal["zero", "mean", "swap"]


@dataclass(frozen=True, kw_only=True)
class _Instances:
    """The instances of one split, how the model scores on them, and which rows swap their codes."""

    batch: Batch
    base: Ratio
    partner: Int[Tensor, " rows"]


def measure_ablations(
    model: nn.Module, task: Task, *, metric: str, num_instances: int, device: torch.device | str = "cpu"
) -> Ablations:
    """The effect of each ablation of each layer and head, on `test` and `ood`."""
    num_instances = min(num_instances, MAX_INSTANCES)
    instances: dict[Side, _Instances] = {}
    with evaluating(model):
        for split in SIDES:
            if task.split.compositions(split):
                batch = task.sample(split, 0, batch_size=num_instances, device=device)
                base = score_rows(model, task, batch, metric)
                instances[split] = _Instances(batch=batch, base=base, partner=find_partners(batch.composition))
        means = mean_codes(model, instances["test"].batch.inputs, rows_at_once(task))

        def measure(layer: int, kind: Kind, head: int | None = None) -> Ablation:
            changes: dict[Side, Change] = {}
            for split, rows in instances.items():
                maps = [make_edit(kind, means[layer], head) if i == layer else None for i in range(len(means))]
                partner = rows.partner if kind == "swap" else None
                changed = score_rows(model, task, rows.batch, metric, maps, partner)
                changes[split] = measure_change(rows.base, changed, rows.batch)
            ablation: Ablation = {"layer": layer, "kind": kind, "test": changes["test"]}
            return _add_optional(ablation, head, changes)

        kinds: tuple[Kind, ...] = ("zero", "mean", "swap")
        whole = [(layer, kind) for layer in range(len(means)) for kind in kinds]
        single = [
            (layer, kind, head) for layer, mean in enumerate(means) for head in range(len(mean)) for kind in kinds[:2]
        ]
        layers = [measure(*ablation) for ablation in track(whole, "ablating layers")]
        heads = [measure(*ablation) for ablation in track(single, "ablating heads")]
    return {
        "metric": metric,
        "num_instances": num_instances,
        "base": {split: _value(rows.base) for split, rows in instances.items()},
        "layers": layers,
        "heads": heads,
    }


def _add_optional(ablation: Ablation, head: int | None, changes: Mapping[Side, Change]) -> Ablation:
    if head is not None:
        ablation["head"] = head
    if "ood" in changes:
        ablation["ood"] = changes["ood"]
    return ablation


def make_edit(kind: Kind, mean: Tensor, head: int | None) -> CodeMap:
    """A change of codes (b, h, q, k), of one head or of all. For a swap, the second half of the rows are the donors."""
    heads = slice(None) if head is None else slice(head, head + 1)

    def edit(codes: Tensor) -> Tensor:
        if kind == "swap":
            donors = codes[len(codes) // 2 :]
            return torch.cat([donors, donors])
        codes = codes.clone()
        codes[:, heads] = 0 if kind == "zero" else mean[heads]
        return codes

    return edit


def score_rows(
    model: nn.Module,
    task: Task,
    batch: Batch,
    metric: str,
    maps: Sequence[CodeMap | None] | None = None,
    partner: Int[Tensor, " rows"] | None = None,
) -> Ratio:
    """A metric with the codes of some layers changed; only the predictions of some rows are held at once."""
    num_rows = rows_at_once(task)
    parts = batch.divide(num_rows)
    donors: Sequence[Tensor | None] = [None] * len(parts)
    if partner is not None:
        donors = batch.inputs[partner].split(num_rows)
    scored = [
        task.metrics(predict(model, part.inputs, maps, donor), part)[metric]
        for part, donor in zip(parts, donors, strict=True)
    ]
    return Ratio(torch.cat([part.numerator for part in scored]), torch.cat([part.denominator for part in scored]))


def predict(
    model: nn.Module, inputs: Tensor, maps: Sequence[CodeMap | None] | None, donors: Tensor | None = None
) -> Tensor:
    """Predictions with changed codes. With `donors`, these rows are computed as well, behind the others."""
    rows = inputs if donors is None else torch.cat([inputs, donors])
    predictions: Tensor = model(rows, code_maps=maps)
    return predictions[: len(inputs)]


def mean_codes(model: nn.Module, inputs: Tensor, num_rows: int) -> list[Tensor]:
    """The mean of each layer's codes over instances, (h, q, k); `num_rows` instances are computed at once."""
    totals: list[Tensor] = []
    for chunk in inputs.split(num_rows):
        sums = [codes.sum(dim=0) for codes in model(chunk, return_codes=True)[1]]
        totals = [total + added for total, added in zip(totals, sums, strict=True)] if totals else sums
    return [total / len(inputs) for total in totals]


def find_partners(group: Int[Tensor, " rows"], *, same: bool = False) -> Int[Tensor, " rows"]:
    """For each row, another row of a different group (or of the same group); any row where there is none.

    In the order of groups, the row that is one largest group further on belongs to another group, provided that no group has
    more than half of all rows. Within a group, each row takes the next one.
    """
    order = group.argsort(stable=True)
    counts = group.bincount()
    partner = torch.empty_like(order)
    if not same:
        partner[order] = order.roll(-int(counts.max()))
        return partner
    for members in order.split(counts[counts > 0].tolist()):
        partner[members] = members.roll(-1)
    return partner


def measure_change(base: Ratio, changed: Ratio, batch: Batch) -> Change:
    """The change of a metric on the same instances, with its 95 % interval."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"base": base, "changed": changed}, batch)
    difference = compare(sums.totals["changed"].tolist(), sums.totals["base"].tolist())
    return {"change": difference.value, "low": difference.low, "high": difference.high}


def _value(ratio: Ratio) -> float:
    return float(ratio.numerator.sum() / ratio.denominator.sum())
