"""Interventions: change the latent codes while the model runs, and measure its score and its answers.

**Ablations** change the codes of a whole layer, at all key-query pairs:

- zero: the codes are 0, so attention adds nothing but a bias;
- mean: the codes are their mean over instances, so what is left does not depend on the instance;
- swap: each instance uses the codes of another instance, of another composition.

The first two are also applied to one head at a time. The effect of an ablation is the score with it minus the score without
it, on the same instances.

**Swaps** replace the codes of the last token alone by those of another instance, and everything else in the instance stays as
it is. The task's reading (`Reading.swap`) defines the instances, the groups between which codes are swapped, and the answer to
expect if the codes decide it (`Reading.counterfactual`). Every layer is swapped alone and all layers together, for the pairs
that are probed and for the codes with all keys.

Discrete answers are counted: how many follow the swapped-in codes (`other`), the instance's own task (`own`) or neither,
on the rows where the two differ. They are compared with the answers without a swap and with a control, the codes of another
instance of the *same* group. For real-valued answers the slope is measured. With y the answer without a swap, d the answer to
expect and s the answer after the swap,

    follows = Σ (s - y)(d - y) / Σ (d - y)²

It is 0 if the code does not matter and 1 if the answer follows it. In the first layer a query that attends to itself has
not met its examples yet, unless a softmax over keys weighs it against them: there it is exactly 0.

Every 95 % interval is over compositions, as for scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recombine.attention.definition import CodeMap
from recombine.foundation.display import track
from recombine.foundation.errors import InputError
from recombine.inside.collect import rows_at_once
from recombine.inside.result import SIDES, Ablation, Ablations, Change, Number, Side, SplitSwaps, SwapAnswers, Swaps
from recombine.tasks.base import Ratio, Task
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sampling import Batch
from recombine.training.intervals import compare_rows
from recombine.training.schema import Json
from recombine.training.score import CompositionSums, evaluating

MAX_INSTANCES = 500  # per split: there are many ablations to measure
MAX_INSTANCES_SWAP = 1_000  # per split

Kind = Literal["zero", "mean", "swap"]


def measure_ablations(
    model: nn.Module, task: Task, *, metric: str, num_instances: int, device: torch.device | str = "cpu"
) -> Ablations:
    """The effect of each ablation of each layer and head, on `test` and `ood`."""
    num_instances = min(num_instances, MAX_INSTANCES)
    splits = [split for split in SIDES if task.split.compositions(split)]
    with evaluating(model):
        batches = {split: task.sample(split, 0, batch_size=num_instances, device=device) for split in splits}
        base = {split: score_rows(model, task, batch, metric) for split, batch in batches.items()}
        means = mean_codes(model, batches["test"].inputs, rows_at_once(task))

        def measure(layer: int, kind: Kind, head: int | None = None) -> Ablation:
            maps = [make_edit(kind, mean, head) if i == layer else None for i, mean in enumerate(means)]
            ablation: Json = {"layer": layer, "kind": kind} | ({} if head is None else {"head": head})
            for split, batch in batches.items():
                partner = find_partners(batch.composition) if kind == "swap" else None
                changed = score_rows(model, task, batch, metric, maps, partner)
                ablation[split] = measure_change(base[split], changed, batch)
            return cast(Ablation, ablation)

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
        "base": {split: float(ratio.numerator.sum() / ratio.denominator.sum()) for split, ratio in base.items()},
        "layers": layers,
        "heads": heads,
    }


def make_edit(kind: Kind, mean: Tensor, head: int | None) -> CodeMap:
    """A map of codes (b, h, q, k), of one head or of all. For a swap, the second half of the rows are the donors."""
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
    parts = batch.divide(rows_at_once(task))
    donors = [None] * len(parts) if partner is None else batch.inputs[partner].split(rows_at_once(task))
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
    difference = compare_rows(changed, base, batch)
    return {"change": difference.value, "low": difference.low, "high": difference.high}


class Swap(NamedTuple):
    """The instances of one split, the partner of each, the answers without a swap, and those to expect with it."""

    reading: Reading
    batch: Batch
    partner: Int[Tensor, " rows"]
    base: Tensor
    expected: Counterfactual


class Arm(NamedTuple):
    """Which codes are swapped: the layers, and the keys by name and number (None is all)."""

    layers: list[int]
    name: Literal["probed", "all"]
    keys: Sequence[int] | None


def measure_swaps(
    model: nn.Module, reading: Reading, *, num_instances: int, device: torch.device | str = "cpu"
) -> Swaps:
    """Swap codes between the instances that the reading names; raises if the task defines no such experiment."""
    swapped = reading.swap
    if swapped is None:
        raise InputError(
            f"task {reading.task.name!r} does not define the answer with the codes of another instance: "
            "expected a task whose reading defines a swap"
        )
    num_instances = min(num_instances, MAX_INSTANCES_SWAP)
    splits: dict[Side, SplitSwaps] = {}
    discrete = True
    with evaluating(model):
        example = next(iter(swapped.batches("test", 1, next(model.parameters()).device)))
        arms = list_arms(len(model(example.inputs, return_codes=True)[1]), swapped)
        for split in SIDES:
            if not swapped.task.split.compositions(split):
                continue
            batch = Batch.join(list(swapped.batches(split, num_instances, device)))
            partner = find_partners(swapped.group(batch))
            parts = batch.inputs.split(rows_at_once(swapped.task))
            base = torch.cat([swapped.read_answer(model(inputs)) for inputs in parts])
            expected = swapped.counterfactual(batch, partner, base)
            if not expected.distinct.any():
                raise InputError(f"no two instances of {split} have answers that differ: expected more instances")
            swap = Swap(swapped, batch, partner, base, expected)
            discrete = not expected.own.is_floating_point()
            splits[split] = (_count_answers if discrete else _measure_slopes)(model, swap, arms)
    if discrete:
        names = list(swapped.group_names)
        return {"kind": "rules", "num_instances": num_instances, "splits": splits, "rules": names}
    return {"kind": "functions", "num_instances": num_instances, "splits": splits}


def list_arms(num_layers: int, reading: Reading) -> list[Arm]:
    """Every layer alone and all together, with the probed keys and with all keys."""
    layers = [[layer] for layer in range(num_layers)] + ([list(range(num_layers))] if num_layers > 1 else [])
    probed = [Arm(chosen, "probed", reading.keys) for chosen in layers]
    return probed + [Arm(chosen, "all", None) for chosen in layers]


def swap_codes(model: nn.Module, swap: Swap, partner: Int[Tensor, " rows"], arms: Sequence[Arm]) -> list[Tensor]:
    """For each arm, the answers when the last query has the codes of `partner` in these layers, with these keys."""
    answers: list[list[Tensor]] = [[] for _ in arms]
    inputs = swap.batch.inputs
    chunked = torch.arange(len(inputs), device=inputs.device).split(rows_at_once(swap.reading.task))
    for rows in track(chunked, "swapping codes"):
        _, codes = model(inputs[partner[rows]], return_codes=True)
        donors = [layer_codes[:, :, -1] for layer_codes in codes]
        for arm, chunks in zip(arms, answers, strict=True):
            maps = [_paste(donor, arm.keys) if layer in arm.layers else None for layer, donor in enumerate(donors)]
            chunks.append(swap.reading.read_answer(model(inputs[rows], code_maps=maps)))
    return [torch.cat(chunks) for chunks in answers]


def _paste(donor: Tensor, keys: Sequence[int] | None) -> CodeMap:
    positions = slice(None) if keys is None else list(keys)

    def paste(codes: Tensor) -> Tensor:
        codes = codes.clone()
        codes[:, :, -1, positions] = donor[:, :, positions]
        return codes

    return paste


def _count_answers(model: nn.Module, swap: Swap, arms: Sequence[Arm]) -> SplitSwaps:
    """How often the answer follows the swapped-in rule, its own rule, or neither."""
    expected = swap.expected
    twin = find_partners(swap.reading.group(swap.batch), same=True)
    has_twin = twin != torch.arange(len(twin), device=twin.device)
    answers, controls = (swap_codes(model, swap, donors, arms) for donors in (swap.partner, twin))
    counted: list[SwapAnswers] = []
    for arm, answer, control in zip(arms, answers, controls, strict=True):
        same_rule = float((control == expected.own)[has_twin].double().mean())
        shares = _share_answers(answer, swap)
        counted.append({"layers": arm.layers, "keys": arm.name, **shares, "same_rule": same_rule})
    return {
        "num_rows": int(expected.distinct.sum()),
        "base": _share_answers(swap.base, swap),
        "base_accuracy": float((swap.base == expected.own).double().mean()),
        "arms": counted,
        "by_rule": _share_by_group(answers[-1] == expected.other, swap),  # the last arm: all layers with all keys
    }


def _share_answers(answer: Tensor, swap: Swap) -> SwapAnswers:
    expected = swap.expected
    follows_other, follows_own = answer == expected.other, answer == expected.own
    other, own = (follows[expected.distinct].double().mean() for follows in (follows_other, follows_own))
    return {
        "other": float(other),
        "own": float(own),
        "neither": max(float(1 - other - own), 0.0),
        "interval": _bound(follows_other.double(), expected.distinct.double(), swap.batch),
    }


def _share_by_group(follows: Bool[Tensor, " rows"], swap: Swap) -> list[list[Number]]:
    """The share of answers that follow, by own group (row) and swapped-in group (column)."""
    own_group = swap.reading.group(swap.batch)
    other_group = own_group[swap.partner]
    groups = range(len(swap.reading.group_names))
    table: list[list[Number]] = []
    for i in groups:
        pairs = [swap.expected.distinct & (own_group == i) & (other_group == j) for j in groups]
        table.append([float(follows[rows].double().mean()) if rows.any() else None for rows in pairs])
    return table


def _measure_slopes(model: nn.Module, swap: Swap, arms: Sequence[Arm]) -> SplitSwaps:
    """How far the answer follows the swapped-in codes."""
    expected = swap.expected
    gap = expected.other - expected.own
    weight = gap.square().sum(dim=-1).clamp_min(1e-12) * expected.distinct
    measured: list[SwapAnswers] = []
    for arm, answers in zip(arms, swap_codes(model, swap, swap.partner, arms), strict=True):
        moved = ((answers - expected.own) * gap).sum(dim=-1)
        slope = torch.where(expected.distinct, moved / weight, 0)
        follows = float((slope * weight).sum() / weight.sum())
        interval = _bound(slope, weight, swap.batch)
        measured.append({"layers": arm.layers, "keys": arm.name, "follows": follows, "interval": interval})
    return {"num_rows": int(expected.distinct.sum()), "arms": measured}


def _bound(values: Float[Tensor, " rows"], weight: Float[Tensor, " rows"], batch: Batch) -> list[Number]:
    """The 95 % interval of the weighted mean."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"values": Ratio(values * weight, weight)}, batch)
    return list(sums.interval("values"))
