"""Give the last token the latent codes of another instance: does its answer follow the codes?

SRAVEN (`swap_rules`): on puzzles without permutations, the codes of the last query token are replaced by those of a puzzle
whose last feature follows another rule. Everything else, the values of its own row included, stays. If the code is the
operation, the answer should be what the *other* rule makes of its own row. Rows where both rules give the same answer, or
where the other rule is distribute three (which says nothing about another puzzle's row), are left out. Beside the answers
stand those without a swap (the base rate) and the control: codes of a puzzle with the *same* rule.

Fuzzy logic (`swap_functions`): all functions at the same query. With y the model's own answer, d its answer for the donor
and s the answer after the swap, `follows` is the slope Σ (s - y)(d - y) / Σ (d - y)²: 0 if the code does not matter, 1 if
the answer is the donor's. In the first layer the query attending to itself has not met its examples, unless a softmax
over keys weighs it against them: exactly 0.

Each is done for every layer alone and for all together, for the pairs that are probed and for the codes with all keys. The
95 % interval of `other` and of `follows` comes from a bootstrap over compositions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.evaluate import CompositionSums
from recombine.models.transformer import CodeMap
from recombine.probe.ablate import find_partners
from recombine.probe.collect import CHUNK_SIZE, evaluating
from recombine.probe.readings import FixedReading, Reading
from recombine.tasks import Batch, Ratio, SplitName
from recombine.tasks.sraven.rules import DISTRIBUTE, RULES, deduce_last

MAX_INSTANCES = 1_000  # a split


Arm = tuple[Sequence[int], str, Sequence[int] | None]  # layers; the name of the keys, and which (None is all)


def swap_codes(model: nn.Module, inputs: Tensor, partner: Int[Tensor, " rows"], arms: Sequence[Arm]) -> list[Tensor]:
    """For each arm, the predictions when the last query has its partner's codes in these layers, with these keys."""
    predictions: list[list[Tensor]] = [[] for _ in arms]
    for rows in torch.arange(len(inputs), device=inputs.device).split(CHUNK_SIZE):
        _, codes = model(inputs[partner[rows]], return_codes=True)
        donors = [each[:, :, -1] for each in codes]
        for (layers, _, keys), chunks in zip(arms, predictions, strict=True):
            maps = [_paste(donor, keys) if layer in layers else None for layer, donor in enumerate(donors)]
            chunks.append(model(inputs[rows], code_maps=maps))
    return [torch.cat(chunks) for chunks in predictions]


def _paste(donor: Tensor, keys: Sequence[int] | None) -> CodeMap:
    where = slice(None) if keys is None else list(keys)

    def paste(codes: Tensor) -> Tensor:
        codes = codes.clone()
        codes[:, :, -1, where] = donor[:, :, where]
        return codes

    return paste


def _arms(num_layers: int, reading: Reading) -> list[Arm]:
    """Which layers, and which keys by name."""
    layers = [[layer] for layer in range(num_layers)] + ([list(range(num_layers))] if num_layers > 1 else [])
    return [(each, name, keys) for name, keys in (("probed", reading.keys), ("all", None)) for each in layers]


def _gather(reading: Reading, num_instances: int, device: torch.device | str) -> dict[str, Batch]:
    sides: tuple[SplitName, ...] = ("test", "ood")
    splits = [split for split in sides if reading.task.split.compositions(split)]
    return {split: _join(list(reading.batches(split, num_instances, device))) for split in splits}


def _join(batches: list[Batch]) -> Batch:
    info = {name: torch.cat([batch.info[name] for batch in batches]) for name in batches[0].info}
    inputs, targets, latents = (
        torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets", "latents")
    )
    return Batch(inputs, targets, latents, info)


def swap_rules(
    model: nn.Module, reading: Reading, *, num_instances: int, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """How often the answer follows the swapped-in rule, its own rule, or neither."""
    found: dict[str, Any] = {"kind": "rules", "num_instances": min(num_instances, MAX_INSTANCES), "splits": {}}
    num_values = reading.task.output_dim
    with evaluating(model):
        arms = _arms(count_layers(model, reading), reading)
        for split, batch in _gather(reading, found["num_instances"], device).items():
            rules, own = batch.info["rules"][:, -1], batch.targets[:, -1]
            partner, twin = find_partners(rules), find_partners(rules, same=True)
            other = apply_rules(batch, rules[partner], num_values)
            told = (rules[partner] != rules) & (rules[partner] != DISTRIBUTE) & (other != own)
            if not told.any():
                raise InputError(
                    f"no two instances of {split} have rules that can be told apart: expected more instances"
                )
            has_twin = twin != torch.arange(len(twin), device=twin.device)
            base = model(batch.inputs)[:, -1].argmax(dim=-1)
            answers = [each[:, -1].argmax(dim=-1) for each in swap_codes(model, batch.inputs, partner, arms)]
            controls = [each[:, -1].argmax(dim=-1) for each in swap_codes(model, batch.inputs, twin, arms)]
            found["splits"][split] = {
                "num_rows": int(told.sum()),
                "base": _count(base, own, other, told) | {"interval": _bound(base == other, told, batch)},
                "base_accuracy": float((base == own).double().mean()),
                "arms": [
                    {"layers": list(layers), "keys": name, **_count(answer, own, other, told)}
                    | {"interval": _bound(answer == other, told, batch)}
                    | {"same_rule": float((control == own)[has_twin].double().mean())}
                    for (layers, name, _), answer, control in zip(arms, answers, controls, strict=True)
                ],
                "by_rule": _count_by_rule(answers[-1], other, rules, rules[partner], told),
            }
    found["rules"] = list(RULES)
    return found


def apply_rules(batch: Batch, rules: Int[Tensor, " rows"], num_values: int) -> Int[Tensor, " rows"]:
    """What rules make of the last row of the last feature; for distribute three, which it does not tell, its own answer."""
    *columns, last = batch.info["grids"][:, -1, :, -1].unbind(dim=1)
    deduced = torch.cat([deduce_last(columns, num_values), last[None]])
    return deduced.gather(0, rules[None])[0]


def _count(answer: Tensor, own: Tensor, other: Tensor, told: Bool[Tensor, " rows"]) -> dict[str, float]:
    answer, own, other = answer[told], own[told], other[told]
    follows_other, follows_own = (answer == other).double().mean(), (answer == own).double().mean()
    neither = 1 - follows_other - follows_own
    return {"other": float(follows_other), "own": float(follows_own), "neither": max(float(neither), 0.0)}


def _bound(follows: Tensor, weight: Tensor, batch: Batch) -> list[float]:
    """The 95 % interval of the weighted mean."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"follows": Ratio(follows.double() * weight, weight.double())}, batch)
    return list(sums.interval("follows"))


def _count_by_rule(
    answer: Tensor, other: Tensor, own_rule: Tensor, other_rule: Tensor, told: Tensor
) -> list[list[float | None]]:
    """Of the last arm, all layers with all keys: how often the answer follows, by own rule (row) and swapped-in rule."""
    follows = (answer == other).double()
    table: list[list[float | None]] = []
    for i in range(len(RULES)):
        chosen = [told & (own_rule == i) & (other_rule == j) for j in range(len(RULES))]
        table.append([float(follows[rows].mean()) if rows.any() else None for rows in chosen])
    return table


def swap_functions(
    model: nn.Module, reading: Reading, *, num_instances: int, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """How far the answer follows the function whose code is swapped in."""
    reading = FixedReading(reading.task, "query")
    found: dict[str, Any] = {"kind": "functions", "num_instances": min(num_instances, MAX_INSTANCES), "splits": {}}
    with evaluating(model):
        arms = _arms(count_layers(model, reading), reading)
        for split, batch in _gather(reading, found["num_instances"], device).items():
            partner = find_partners(batch.composition)
            own = model(batch.inputs).flatten(1)[:, -1].double()
            gap = own[partner] - own
            answers = [each.flatten(1)[:, -1].double() for each in swap_codes(model, batch.inputs, partner, arms)]
            weight = gap.square().clamp_min(1e-12)
            slopes = [(answer - own) * gap / weight for answer in answers]
            found["splits"][split] = {
                "num_rows": len(batch),
                "arms": [
                    {"layers": list(layers), "keys": name}
                    | {
                        "follows": float((slope * weight).sum() / weight.sum()),
                        "interval": _bound(slope, weight, batch),
                    }
                    for (layers, name, _), slope in zip(arms, slopes, strict=True)
                ],
            }
    return found


def count_layers(model: nn.Module, reading: Reading) -> int:
    """How many layers of codes a model has."""
    batch = next(iter(reading.batches("test", 1, next(model.parameters()).device)))
    return len(model(batch.inputs, return_codes=True)[1])


SWAPS: dict[str, Callable[..., dict[str, Any]]] = {"sraven": swap_rules, "fuzzy_logic": swap_functions}
