"""Does the code drive the answer? Change the latent codes while the model works, and see what becomes of its score.

Three changes of the codes of a whole layer, each at all key-query pairs:

- zero: the codes are 0, so attention adds nothing but a bias;
- mean: the codes are their mean over instances, the same for all: what is left does not depend on the instance;
- swap: each instance uses the codes of another, of another composition.

The first two are also made of one head at a time. A change is the score with it minus the score without, on the very same
instances; its 95 % interval comes from a bootstrap over compositions, as that of every score.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from recombine.evaluate import NUM_RESAMPLES, CompositionSums
from recombine.kernels import CodeMap
from recombine.probe.collect import CHUNK_SIZE, evaluating
from recombine.tasks import Batch, Ratio, Stream, Task

MAX_INSTANCES = 500  # a split: there are many changes to make


def measure_ablations(
    model: nn.Module, task: Task, *, metric: str, num_instances: int, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """The change of the score by each ablation of each layer and head, on `test` and `ood`."""
    num_instances = min(num_instances, MAX_INSTANCES)
    batches = {
        split: task.sample(split, 0, batch_size=num_instances, device=device)
        for split in ("test", "ood")
        if task.split.compositions(split)
    }
    with evaluating(model):
        means = mean_codes(model, batches["test"].inputs)
        base = {split: task.metrics(predict(model, batch), batch)[metric] for split, batch in batches.items()}
        partners = {split: find_partners(batch.composition) for split, batch in batches.items()}

        def measure(layer: int, kind: str, head: int | None) -> dict[str, Any]:
            found: dict[str, Any] = {"layer": layer, "kind": kind} | ({} if head is None else {"head": head})
            for split, batch in batches.items():
                edit = make_edit(kind, means[layer], head)
                partner = partners[split] if kind == "swap" else None
                predictions = predict(model, batch, {layer: edit}, len(means), partner)
                found[split] = compare(base[split], task.metrics(predictions, batch)[metric], batch)
            return found

        layers = range(len(means))
        return {
            "metric": metric,
            "num_instances": num_instances,
            "base": {split: _value(ratio) for split, ratio in base.items()},
            "layers": [measure(layer, kind, None) for layer in layers for kind in ("zero", "mean", "swap")],
            "heads": [
                measure(layer, kind, head)
                for layer in layers
                for head in range(means[layer].shape[0])
                for kind in ("zero", "mean")
            ],
        }


def make_edit(kind: str, mean: Tensor, head: int | None) -> CodeMap:
    """A change of codes (b, h, q, k), of one head or of all; for a swap the second half of the rows are the donors."""
    heads = slice(None) if head is None else slice(head, head + 1)

    def edit(codes: Tensor) -> Tensor:
        if kind == "swap":
            donors = codes[len(codes) // 2 :]
            return torch.cat([donors, donors])
        codes = codes.clone()
        codes[:, heads] = 0 if kind == "zero" else mean[heads]
        return codes

    return edit


def predict(
    model: nn.Module,
    batch: Batch,
    edits: dict[int, CodeMap] | None = None,
    num_layers: int = 0,
    partner: Int[Tensor, " rows"] | None = None,
) -> Tensor:
    """Predictions with some layers' codes changed; with `partner`, each row is followed half a batch later by its donor."""
    maps = None if edits is None else [edits.get(layer) for layer in range(num_layers)]
    predictions = []
    for rows in torch.arange(len(batch), device=batch.inputs.device).split(CHUNK_SIZE):
        if partner is None:
            predictions.append(model(batch.inputs[rows], code_maps=maps))
        else:
            both = batch.inputs[torch.cat([rows, partner[rows]])]
            predictions.append(model(both, code_maps=maps)[: len(rows)])
    return torch.cat(predictions)


def mean_codes(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The mean of each layer's codes over instances, (h, q, k)."""
    totals: list[Tensor] = []
    for chunk in inputs.split(CHUNK_SIZE):
        sums = [codes.sum(dim=0) for codes in model(chunk, return_codes=True)[1]]
        totals = sums if not totals else [total + each for total, each in zip(totals, sums, strict=True)]
    return [total / len(inputs) for total in totals]


def find_partners(group: Int[Tensor, " rows"], *, same: bool = False) -> Int[Tensor, " rows"]:
    """For each row another row of a different group (or of the same one); where there is none, some row.

    Sorted by group, the row that is one largest group further on is of another group, if no group has more than half of all
    rows. Within a group each row takes the next.
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


def compare(base: Ratio, changed: Ratio, batch: Batch) -> dict[str, float]:
    """The change of a metric, with its 95 % interval over resampled compositions."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"base": base, "changed": changed}, batch)
    totals = torch.stack([sums.totals["base"], sums.totals["changed"]])
    totals = totals[:, :, totals[0, 1] > 0]
    drawn = Stream("bootstrap", rows=range(NUM_RESAMPLES)).integers(totals.shape[2], totals.shape[2])
    values = totals[:, :, drawn].sum(dim=-1)
    changes = values[1, 0] / values[1, 1] - values[0, 0] / values[0, 1]
    low, high = torch.quantile(changes, torch.tensor([0.025, 0.975], dtype=changes.dtype)).tolist()
    return {"change": sums.value("changed") - sums.value("base"), "low": low, "high": high}


def _value(ratio: Ratio) -> float:
    return float(ratio.numerator.sum() / ratio.denominator.sum())
