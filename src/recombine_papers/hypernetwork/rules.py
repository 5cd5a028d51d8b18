"""Figures 5A, 5B, 5E, 5F, A6, A7 and A8: do the latent codes of SRAVEN networks identify rules, and do answers follow them?

The runs are those of `sraven-paper`. The paper prints pictures and no numbers for these figures, so the claims are its
sentences, with bounds of our choice. The swap of codes is our question.

Codes are read on puzzles without permutations, in two ways. The paper reads the code of the last query token attending to
itself (`self`). `recombine probe` reads the codes of that token with the same feature in its row, itself included (`row`). In
the first layer the code `self` is the same in all puzzles, unless a softmax over keys normalises it.

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
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from torch import nn

from recombine.foundation import Column, Table, Value
from recombine.inside import (
    Activations,
    Measurement,
    SwapAnswers,
    Swaps,
    collect_activations,
    decode_components,
    find_best_site,
    last_site,
    measure_similarity,
    measure_structure,
    measure_swaps,
    sample_rows,
)
from recombine.sweeps import Record, mean_cell
from recombine.tasks import Scale, SRaven, SRavenReading, Task
from recombine.training import Json, RunDirectory
from recombine_papers.base import Finished, Group, load_networks
from recombine_papers.claims import Claim, Exceeds, Reads, Untested
from recombine_papers.experiment import PaperExperiment
from recombine_papers.hypernetwork.fuzzy_logic import ATTENTIONS, DROPOUTS
from recombine_papers.hypernetwork.rule_figures import draw_rules, mean_of, name_network
from recombine_papers.hypernetwork.sraven import SRavenPaper
from recombine_papers.learning_curves import NAMES

RULE_CODES = Measurement(name="rule_codes", version=1)
NUM_INSTANCES = 4_000  # per split, the default of `recombine probe`
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
        config, model, untrained = load_networks(run.path, device)
        return {
            name: {
                "trained": measure_codes(model, reading),
                "untrained": measure_codes(untrained, reading),
                "swap": measure_swaps(
                    model, reading, num_instances=NUM_INSTANCES, device=next(model.parameters()).device
                ),
            }
            for name, reading in make_readings(config.task).items()
        }

    return RULE_CODES.load_or_measure(run.path, {"num_instances": NUM_INSTANCES}, measure)


def make_readings(task: Task) -> dict[str, SRavenReading]:
    """The pairs whose codes are read, by name."""
    assert isinstance(task, SRaven)
    return dict(zip(READINGS, (SelfReading(task), SRavenReading(task)), strict=True))


def measure_codes(model: nn.Module, reading: SRavenReading) -> Json:
    """What `recombine probe` finds in the codes of each layer."""
    device = next(model.parameters()).device
    activations = collect_activations(model, reading, num_instances=NUM_INSTANCES, sites=(), device=device)
    rows = sample_rows(activations)
    return {
        "decoders": decode_components(activations, seed=reading.task.seed, controlled=False),
        "structure": {site: measure_structure(activations, site, rows) for site in activations.by_site},
        "similarity": {site: measure_similarity(activations, site) for site in activations.by_site},
        "mean_codes": average_codes(activations),
    }


def average_codes(activations: Activations) -> dict[str, list[float]]:
    """The mean code of each rule in the last layer, over held-out compositions."""
    rows = activations.rows("ood")
    codes, labels = activations.by_site[last_site(activations.by_site)][rows], activations.labels[rows]
    return {
        name: codes[labels[:, number] > 0.5].mean(axis=0).tolist()
        for number, name in enumerate(activations.modules)
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


def flatten_swaps(swaps: Mapping[str, Swaps]) -> Numbers:
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


def describe_arm(arm: SwapAnswers) -> dict[str, float | None]:
    """The shares of answers after a swap, with the 95 % interval of those that follow the other rule."""
    low, high = arm["interval"]
    return {
        "other": arm["other"],
        "other_low": low,
        "other_high": high,
        "own": arm["own"],
        "same_rule": arm["same_rule"],
    }


MARGIN = 0.1  # above the untrained network, the majority, or answers without a swap
LAYER_DIFFERENCE = 0.05  # between both halves of the layers, and between rule and target
ALIKE, MORE_ALIKE = 0.8, 0.3  # cosine of addition and subtraction; its distance from the mean of other pairs
SAME_RULE_LEAD = 0.2  # right answers with codes of the same rule above those with codes of another
HALF = 0.5  # answers that follow the other rule
READING_NAMES = {
    "self": "code of the query token attending to itself",
    "row": "codes with its row of the puzzle (ours)",
}
# later and earlier layers, and both in words; `self` starts with the second layer, because in the first it is the same in all
# puzzles for HYLA and linear attention
HALVES = {
    "self": ("last", "layer_1", "last and second layer"),
    "row": ("late", "early", "last two and first two layers"),
}
# the related rules of figure 5E besides addition and subtraction
RELATED_FIGURE_5 = (("progression +1", "progression +2"), ("progression -1", "progression -2"))

# The rows of the table, and the names of their numbers; {} is the reading. All numbers in claims are among them.
ROWS = {
    "F1 of rules, first two layers": "{}_f1_early",
    "F1 of rules, last two layers": "{}_f1_late",
    "F1 of rules, second layer": "{}_f1_layer_1",
    "F1 of rules, last layer": "{}_f1_last",
    "F1 of rules, best layer": "{}_f1_best",
    "F1, best minus untrained or majority": "{}_f1_lead",
    "F1, majority": "f1_majority",
    "cosine of addition and subtraction": "{}_cosine_last",
    "cosine of progressions +1 and +2": "{}_cosine_progression +1_progression +2",
    "cosine of progressions −1 and −2": "{}_cosine_progression -1_progression -2",
    "cosine of other pairs than addition and subtraction, mean": "{}_cosine_other_last",
    "cosine of addition and subtraction, untrained": "{}_cosine_untrained_last",
    "neighbours of the same rule, first two layers": "{}_purity_rule_early",
    "neighbours of the same rule, last two layers": "{}_purity_rule_late",
    "neighbours of the same rule, second layer": "{}_purity_rule_layer_1",
    "neighbours of the same rule, last layer": "{}_purity_rule_last",
    "neighbours of the same rule, last layer, untrained": "{}_purity_rule_untrained_last",
    "neighbours of the same target, first two layers": "{}_purity_target_early",
    "neighbours of the same target, last two layers": "{}_purity_target_late",
    "neighbours of the same target, second layer": "{}_purity_target_layer_1",
    "neighbours of the same target, last layer": "{}_purity_target_last",
    "neighbours of the same target, last layer, untrained": "{}_purity_target_untrained_last",
    "no swap: answers that follow another rule": "swap_none_other",
    "swap in the best layer: follow the other rule": "{}_swap_other_best",
    "swap in all layers: follow the other rule": "{}_swap_other_all_layers",
    "no swap: follow their own rule": "swap_none_own",
    "swap in all layers: follow their own rule": "{}_swap_own_all_layers",
    "codes of the same rule in all layers: right answers": "{}_swap_same_rule_all_layers",
}


def list_settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Where every statement is judged, the most telling setting first: the reading, and `where` and `of` of a claim."""
    for reading in READINGS:
        for rate in DROPOUTS if reading == "self" else (0.0,):
            for attention in ATTENTIONS[::-1]:
                dropout = f"dropout {rate:g}" if rate else "no dropout"
                where = f"{NAMES[attention]}, {dropout}, {READING_NAMES[reading]}"
                yield reading, {"where": where, "of": {"attention": attention, "dropout": rate}}


def claim_number(text: str, source: str, quantity: str, low: float, **choices: Any) -> Iterator[Claim]:
    """A number of each reading is large enough."""
    for reading, setting in list_settings():
        yield Reads(text=text, source=source, quantity=f"{reading}_{quantity}", low=low, **setting, **choices)


def claim_excess(text: str, source: str, quantity: str, over: str, by: float, **choices: Any) -> Iterator[Claim]:
    """A number of each reading exceeds another one."""
    for reading, setting in list_settings():
        choices |= {"quantity": f"{reading}_{quantity}", "over": over.format(reading)}
        yield Exceeds(text=text, source=source, by=by, **setting, **choices)


def claim_layers(text: str, source: str, quantity: str, *, rises: bool) -> Iterator[Claim]:
    """A number of each reading rises, or falls, from early to late layers."""
    for reading, setting in list_settings():
        *ends, layers = HALVES[reading]
        later, earlier = (f"{reading}_{quantity}_{end}" for end in (ends if rises else ends[::-1]))
        setting["where"] += f", {layers}"
        yield Exceeds(text=text, source=source, quantity=later, over=earlier, by=LAYER_DIFFERENCE, **setting)


def claim_related() -> Iterator[Claim]:
    """Progressions in the same direction have similar codes."""
    for one, other in RELATED_FIGURE_5:
        rules = f"{one} and {other.removeprefix('progression ')}".replace("progression", "progressions").replace(
            "-", "−"
        )
        for claim in claim_number(
            "semantically related rules have similar codes (cosine of mean codes)",
            "section 4.4, figure 5E",
            f"cosine_{one}_{other}",
            ALIKE,
        ):
            yield replace(claim, where=f"{rules}, {claim.where}")


class Figure5(PaperExperiment):
    """Rules in the latent codes of the runs of `sraven-paper`, and answers after a swap of codes."""

    name = "figure-5"
    core_hours = (2.4, 7.7, 29)
    question = "Do the latent codes of SRAVEN networks identify rules, and do answers follow the codes?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    quantities = tuple(dict.fromkeys(name.format(reading) for name in ROWS.values() for reading in READINGS))
    claims = (
        *claim_number(
            "rules are decodable from the latent code (F1 above the untrained network and the majority)",
            "figure 5F",
            "f1_lead",
            MARGIN,
        ),
        *claim_layers("rules are more decodable in later layers (F1)", "section 4.4, figure 5F", "f1", rises=True),
        *claim_number(
            "addition and subtraction have similar codes (cosine of mean codes)",
            "figure 5E",
            "cosine_last",
            ALIKE,
        ),
        *claim_excess(
            "addition and subtraction are more alike than other pairs of rules (cosine)",
            "figure 5E",
            "cosine_last",
            "{}_cosine_other_last",
            MORE_ALIKE,
        ),
        *claim_related(),
        *claim_excess(
            "addition and subtraction are more alike than before training (cosine)",
            "our question",
            "cosine_last",
            "{}_cosine_untrained_last",
            MORE_ALIKE,
            ours=True,
        ),
        *claim_excess(
            "codes of the last layer cluster by rule (neighbours of the same rule, above the untrained network)",
            "figure 5B",
            "purity_rule_last",
            "{}_purity_rule_untrained_last",
            MARGIN,
        ),
        *claim_excess(
            "codes of the last layer cluster by rule more than by target (neighbours)",
            "figures 5A and 5B",
            "purity_rule_last",
            "{}_purity_target_last",
            LAYER_DIFFERENCE,
        ),
        *claim_layers("later layers cluster more by rule (neighbours)", "figure A6B", "purity_rule", rises=True),
        *claim_layers(
            "early layers cluster more by target (neighbours)",
            "section 4.4, figure A6A",
            "purity_target",
            rises=False,
        ),
        Untested(
            text="with 16 layers, codes of early layers cluster by target and those of the last by rule",
            where="softmax",
            source="section 4.4, figure A7",
            needs="a softmax transformer of 16 layers that is trained on 40 million instances: about 17 core-hours, not run",
            of={"attention": "softmax", "layers": 16},
        ),
        *claim_excess(
            "answers follow codes of another rule that are swapped in (all layers, above no swap)",
            "our question",
            "swap_other_all_layers",
            "swap_none_other",
            MARGIN,
            ours=True,
        ),
        *claim_number(
            "most answers follow codes of another rule (all layers)",
            "our question",
            "swap_other_all_layers",
            HALF,
            ours=True,
        ),
        *claim_excess(
            "codes of the same rule leave more answers right than codes of another (all layers)",
            "our question",
            "swap_same_rule_all_layers",
            "{}_swap_own_all_layers",
            SAME_RULE_LEAD,
            ours=True,
        ),
    )
    known_before = (
        "networks with two features, one seed, codes with the row: F1 0.46 to 0.57 in layers 1 to 3, cosine 0.98 and 0.99, "
        "answers that follow the other rule 0.27 (softmax) and 0.18 (HYLA); in narrower ones, neighbours of the same rule "
        "0.40 to 0.62 and of the same target 0.33 to 0.59. Nothing was known about "
        "networks with four features or about the query's own code. The cosines of progressions, and the comparison of the "
        "last layer with the second, were added when the numbers of the networks without dropout were stored."
    )
    differs = (
        "10 million instances instead of 40; bf16; linear decoders with both classes weighted equally. Our cosine subtracts "
        "the mean of all codes, figure 5E shows the plain cosine of mean codes. The paper reads the code of the query token "
        "attending to itself; its codes with its row of the puzzle are our reading. In the first layer the former is the "
        "same in all puzzles for HYLA and linear attention, so its layers are compared from the second on."
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        return SRavenPaper().records(scale)

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return flatten(read_rule_codes(run, device))

    def summarise(self, finished: Finished) -> Table:
        return tabulate_rules(finished)

    def answer(self, finished: Finished) -> str:
        sentences = map(describe_network, self.measure_runs(finished, "auto").groups)
        return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_rules(self.measure_runs(finished, "auto"), folder)


def tabulate_rules(finished: Finished) -> Table:
    """Every number of the claims, one column per network and reading, means over seeds."""
    columns = [(group, reading) for group in finished.groups for reading in READINGS]
    rows: list[tuple[Value, ...]] = [
        (words, *(mean_cell(group.measured(name.format(reading))) for group, reading in columns))
        for words, name in ROWS.items()
    ]
    return Table(
        title="Rules in the latent codes, on held-out compositions",
        columns=("number", *(Column(name=f"{name_network(group)}, {reading}") for group, reading in columns)),
        rows=tuple(rows),
        note="self: the code of the last query token attending to itself; row: its codes with the same feature in its row of "
        "the puzzle (our reading); "
        "neighbours: share of the ten nearest codes, by chance 1 in 8; means over seeds",
    )


def describe_network(group: Group) -> str:
    """What the codes of a network say and do, in a sentence."""
    names = ("row_f1_best", "self_f1_best", "f1_majority", "row_swap_other_all_layers", "swap_none_other")
    row, own, majority, swapped, without = (mean_of(group, name) for name in names)
    return (
        f"{name_network(group)}: rules are decoded with F1 {row:.2f} from the codes with the row of the puzzle and {own:.2f} "
        f"from the code of the query token attending to itself (majority {majority:.2f}); answers follow codes of another "
        f"rule in {100 * swapped:.0f} % of cases, without a swap in {100 * without:.0f} %."
    )
