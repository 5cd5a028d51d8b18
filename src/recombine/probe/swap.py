"""Give the last token the latent codes of another instance: does its answer follow the codes?

The task's reading (`Reading.swap`) says which instances take part, between which groups codes are swapped, and what the
answer would be if the codes decide it (`Reading.counterfactual`). Everything else in the instance stays as it is.

Discrete answers are counted: how many follow the swapped-in codes (`other`), the instance's own task (`own`) or neither,
on the rows where the two differ. They are compared with the answers without a swap and with a control, the codes of another
instance of the *same* group.

For real-valued answers the slope is measured. With y the answer without a swap, d the answer to expect and s the answer
after the swap,

    follows = Σ (s - y)(d - y) / Σ (d - y)²

It is 0 if the code does not matter and 1 if the answer follows it. In the first layer a query that attends to itself has
not met its examples yet, unless a softmax over keys weighs it against them: there it is exactly 0.

Each is done for every layer alone and for all layers together, for the pairs that are probed and for the codes with all
keys. The 95 % interval of `other` and of `follows` comes from a bootstrap over compositions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.evaluate import CompositionSums
from recombine.kernels import CodeMap
from recombine.probe.ablate import find_partners
from recombine.probe.collect import evaluating, rows_at_once
from recombine.probe.schema import (
    SIDES,
    AnswerShares,
    CountedArm,
    CountedSplit,
    CountedSwap,
    Number,
    Side,
    SlopeArm,
    SlopeSplit,
    SlopeSwap,
)
from recombine.progress import track
from recombine.tasks import Batch, Ratio
from recombine.tasks.reading import Counterfactual, Reading

MAX_INSTANCES = 1_000  # per split


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
) -> CountedSwap | SlopeSwap:
    """Swap codes between the instances that the reading names; raises if the task defines no such experiment."""
    swapped = reading.swap
    if swapped is None:
        raise InputError(
            f"task {reading.task.name!r} does not say what the answer is with the codes of another instance: "
            "expected a task whose reading defines a swap"
        )
    num_instances = min(num_instances, MAX_INSTANCES)
    counted: dict[Side, CountedSplit] = {}
    slopes: dict[Side, SlopeSplit] = {}
    with evaluating(model):
        arms = list_arms(count_layers(model, swapped), swapped)
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
            if expected.own.is_floating_point():
                slopes[split] = _measure_slopes(model, swap, arms)
            else:
                counted[split] = _count_answers(model, swap, arms)
    if slopes:
        return {"kind": "functions", "num_instances": num_instances, "splits": slopes}
    names = list(swapped.group_names)
    return {"kind": "rules", "num_instances": num_instances, "splits": counted, "rules": names}


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


def _count_answers(model: nn.Module, swap: Swap, arms: Sequence[Arm]) -> CountedSplit:
    """How often the answer follows the swapped-in rule, its own rule, or neither."""
    expected = swap.expected
    twin = find_partners(swap.reading.group(swap.batch), same=True)
    has_twin = twin != torch.arange(len(twin), device=twin.device)
    answers, controls = (swap_codes(model, swap, donors, arms) for donors in (swap.partner, twin))
    counted: list[CountedArm] = []
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


def _share_answers(answer: Tensor, swap: Swap) -> AnswerShares:
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


def _measure_slopes(model: nn.Module, swap: Swap, arms: Sequence[Arm]) -> SlopeSplit:
    """How far the answer follows the swapped-in codes."""
    expected = swap.expected
    gap = expected.other - expected.own
    weight = gap.square().sum(dim=-1).clamp_min(1e-12) * expected.distinct
    measured: list[SlopeArm] = []
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


def count_layers(model: nn.Module, reading: Reading) -> int:
    """How many layers of codes a model has."""
    batch = next(iter(reading.batches("test", 1, next(model.parameters()).device)))
    return len(model(batch.inputs, return_codes=True)[1])
