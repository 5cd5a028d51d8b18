"""What the latent codes of SRAVEN networks say about rules: the numbers of figures 5A, 5B, 5E and 5F, and of a swap.

Codes are read on puzzles without permutations, in two ways. The paper reads the code of the last query token with itself
(`self`). `recombine probe` reads its codes with the same feature in its own row, itself included (`row`). In the first layer
the code `self` is the same in all puzzles, unless a softmax over keys weighs it against them.

The numbers are flat, so that they can be stored. A name starts with the reading and ends with the layer:

    self_f1_layer_2              F1 of the rule on held-out compositions
    self_purity_rule_layer_2     share of the nearest codes that have the same rule (`purity_target`: the same target)
    self_cosine_layer_2          cosine of the mean codes of addition and subtraction, after subtracting the mean of all codes
    self_cosine_other_layer_2    the same for the other pairs of rules, averaged
    self_code_addition_head_5    mean code of a rule in the last layer (figure A8), for `self` only
    self_swap_other_layer_2      share of answers that follow the rule whose code is swapped in; `own`: the puzzle's own rule;
                                 `same_rule`: right answers with codes of another puzzle of the same rule

`untrained` in a name is the same network before training. `early` and `late` are means over the first and the second half of
the layers, `last` is the last layer, and `best` a layer that is chosen on trained compositions. Swaps are also made with the
codes of all keys (`all_swap_...`) and in all layers at once (`..._all_layers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import cast

from torch import nn

from recombine.probe.cache import Measurement
from recombine.probe.collect import collect
from recombine.probe.decode import decode, find_best_site
from recombine.probe.observations import Observations
from recombine.probe.schema import CountedArm, CountedSwap
from recombine.probe.sites import last_site
from recombine.probe.structure import measure_similarity, measure_structure, sample_rows
from recombine.probe.swap import measure_swaps
from recombine.run import load_run
from recombine.store import Json, RunDirectory
from recombine.tasks import SRaven, Task
from recombine.tasks.sraven.reading import SRavenReading

RULE_CODES = Measurement(name="rule_codes", version=1)
NUM_INSTANCES = 4_000  # per split, as `recombine probe` takes by default
READINGS = ("self", "row")
RELATED = {"addition", "subtraction"}
HALVED = ("f1", "purity_rule", "purity_target")  # compared between early and late layers

Numbers = dict[str, float]


class SelfReading(SRavenReading):
    """The code of the last query token with itself, as in the paper."""

    codes = "the last query token attending to itself"

    @property
    def keys(self) -> tuple[int, ...]:
        return (-1,)


def read_rule_codes(run: RunDirectory, device: str) -> Json:
    """Decoders, neighbourhoods and similarities of both readings, before and after training, and swaps; measured once."""

    def measure() -> Json:
        _, config, model = load_run(run.path, device)
        untrained = config.build_model().to(next(model.parameters()).device)
        return {
            name: {
                "trained": examine_codes(model, reading),
                "untrained": examine_codes(untrained, reading),
                "swap": measure_swaps(
                    model, reading, num_instances=NUM_INSTANCES, device=next(model.parameters()).device
                ),
            }
            for name, reading in make_readings(config.task).items()
        }

    return RULE_CODES.keep(run.path, {"num_instances": NUM_INSTANCES}, measure)


def make_readings(task: Task) -> dict[str, SRavenReading]:
    """The pairs whose codes are read, by name."""
    assert isinstance(task, SRaven)
    return dict(zip(READINGS, (SelfReading(task), SRavenReading(task)), strict=True))


def examine_codes(model: nn.Module, reading: SRavenReading) -> Json:
    """What `recombine probe` finds in the codes of each layer."""
    device = next(model.parameters()).device
    observations = collect(model, reading, num_instances=NUM_INSTANCES, sites=(), device=device)
    rows = sample_rows(observations)
    return {
        "decoders": decode(observations, seed=reading.task.seed, controlled=False),
        "structure": {site: measure_structure(observations, site, rows) for site in observations.activations},
        "similarity": {site: measure_similarity(observations, site) for site in observations.activations},
        "mean_codes": average_codes(observations),
    }


def average_codes(observations: Observations) -> dict[str, list[float]]:
    """The mean code of each rule in the last layer, over held-out compositions."""
    rows = observations.rows("ood")
    codes, labels = observations.activations[last_site(observations.activations)][rows], observations.labels[rows]
    return {
        name: codes[labels[:, number] > 0.5].mean(axis=0).tolist()
        for number, name in enumerate(observations.modules)
        if labels[:, number].any()
    }


def flatten(found: Json) -> Numbers:
    """What `read_rule_codes` found, as numbers by name."""
    numbers: Numbers = {}
    for reading in READINGS:
        trained, untrained = (list_layers(found[reading][state]) for state in ("trained", "untrained"))
        numbers |= {f"{reading}_{name}": value for name, value in summarise_layers(trained, untrained)}
        decoders = found[reading]["trained"]["decoders"]
        best = decoders[find_best_site(decoders)]["ood"]
        reference = max(best["majority"]["f1"], *(layer["f1"] for layer in untrained))
        numbers |= {f"{reading}_f1_best": best["f1"], f"{reading}_f1_lead": best["f1"] - reference}
        numbers["f1_majority"] = best["majority"]["f1"]
        last = list(found[reading]["trained"]["similarity"].values())[-1]
        numbers |= {f"{reading}_cosine_{one}_{other}": cosine for one, other, cosine in list_pairs(last)}
    for rule, code in found["self"]["trained"]["mean_codes"].items():
        numbers |= {f"self_code_{rule}_head_{head}": score for head, score in enumerate(code)}
    structure = list(found["self"]["trained"]["structure"].values())[-1]
    numbers |= {"chance_rule": structure["module"]["chance"], "chance_target": structure["target"]["chance"]}
    return numbers | flatten_swaps({reading: found[reading]["swap"] for reading in READINGS})


def list_layers(found: Json) -> list[Numbers]:
    """The numbers of each layer."""
    layers = []
    for site, decoder in found["decoders"].items():
        pairs = list(list_pairs(found["similarity"][site]))
        layers.append(
            {
                "f1": decoder["ood"]["f1"],
                "f1_seen": decoder["id"]["f1"],
                "purity_rule": found["structure"][site]["module"]["purity"],
                "purity_target": found["structure"][site]["target"]["purity"],
                "cosine": fmean(cosine for one, other, cosine in pairs if {one, other} == RELATED),
                "cosine_other": fmean(cosine for one, other, cosine in pairs if {one, other} != RELATED),
            }
        )
    return layers


def list_pairs(similarity: Json) -> Iterator[tuple[str, str, float]]:
    """Every pair of rules with the cosine of their mean codes, after subtracting the mean of all codes."""
    names, centred = similarity["modules"], similarity["centred"]
    for i, j in combinations(range(len(names)), 2):
        yield names[i], names[j], centred[i][j]


def summarise_layers(trained: Sequence[Numbers], untrained: Sequence[Numbers]) -> Iterator[tuple[str, float]]:
    """Every number of every layer, of the last one, and of both halves of the layers."""
    for state, layers in (("", trained), ("_untrained", untrained)):
        for number, layer in enumerate(layers):
            yield from ((f"{name}{state}_layer_{number}", value) for name, value in layer.items())
        yield from ((f"{name}{state}_last", value) for name, value in layers[-1].items())
    half = len(trained) // 2
    for name in HALVED:
        values = [layer[name] for layer in trained]
        yield f"{name}_early", fmean(values[: max(half, 1)])
        yield f"{name}_late", fmean(values[half:])


def flatten_swaps(swaps: Mapping[str, CountedSwap]) -> Numbers:
    """What answers on held-out compositions follow, without a swap, for each layer, the best layer and all layers."""
    base = swaps["self"]["splits"]["ood"]["base"]
    numbers = {"swap_none_other": base["other"], "swap_none_own": base["own"]}
    for reading, swap in (*swaps.items(), ("all", swaps["self"])):
        keys = "all" if reading == "all" else "probed"
        seen, held_out = (
            [arm for arm in swap["splits"][split]["arms"] if arm["keys"] == keys] for split in ("test", "ood")
        )
        num_layers = max(len(arm["layers"]) for arm in seen)
        single = [number for number, arm in enumerate(seen) if len(arm["layers"]) == 1]
        best = max(single, key=lambda number: cast(float, seen[number]["other"]))
        places = {f"layer_{held_out[number]['layers'][0]}": number for number in single} | {"best": best}
        places |= {"all_layers": next(number for number, arm in enumerate(seen) if len(arm["layers"]) == num_layers)}
        for place, number in places.items():
            numbers |= {
                f"{reading}_swap_{name}_{place}": value for name, value in describe_arm(held_out[number]).items()
            }
        numbers[f"{reading}_swap_best_layer"] = seen[best]["layers"][0]
    return {name: float(value) for name, value in numbers.items() if value is not None}


def describe_arm(arm: CountedArm) -> dict[str, float | None]:
    """The shares of answers after a swap, with the 95 % interval of those that follow the other rule."""
    low, high = arm["interval"]
    return {
        "other": arm["other"],
        "other_low": low,
        "other_high": high,
        "own": arm["own"],
        "same_rule": arm["same_rule"],
    }
