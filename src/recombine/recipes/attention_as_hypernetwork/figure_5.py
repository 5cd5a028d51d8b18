"""Figures 5A, 5B, 5E, 5F, A6 and A7: do the latent codes of SRAVEN networks identify rules? And does the answer follow them?

The runs are those of `sraven-paper`. `rule_codes` says what is read from them. The paper prints pictures and no numbers for
these figures, so the claims are its sentences, with bounds of our choice. The swap of codes is a question of our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.recipes.attention_as_hypernetwork.claims import OutOfReach
from recombine.recipes.attention_as_hypernetwork.evidence import DROPOUTS
from recombine.recipes.attention_as_hypernetwork.evidence_sraven import SRavenPaper
from recombine.recipes.attention_as_hypernetwork.rule_codes import READINGS, flatten, read_rule_codes
from recombine.recipes.attention_as_hypernetwork.rule_figures import draw_rules, mean_of, name_network
from recombine.recipes.attention_as_hypernetwork.runs import ATTENTIONS
from recombine.recipes.claims import Claim
from recombine.recipes.comparison import mean_cell
from recombine.recipes.experiment import Experiment, Finished, Group, Record
from recombine.recipes.learning_curves import NAMES
from recombine.recipes.measured_claims import Exceeds, Reads
from recombine.store import RunDirectory
from recombine.tables import Column, Table, Value
from recombine.tasks.base import Scale

MARGIN = 0.1  # above the untrained network, the majority, or answers without a swap
LATER = 0.05  # between both halves of the layers, and between rule and target
ALIKE, MORE_ALIKE = 0.8, 0.3  # cosine of addition and subtraction; its distance from the mean of other pairs
KEPT, MOST = (
    0.2,
    0.5,
)  # right answers with codes of the same rule above those of another; answers that follow the other rule
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
RELATED = (
    ("progression +1", "progression +2"),
    ("progression -1", "progression -2"),
)  # besides addition and subtraction

ROWS = {  # of the table: words, and the name of a number; {} is the reading
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


def list_settings() -> Iterator[dict[str, Any]]:
    """Where every statement is judged, the most telling setting first: `where` and `of` of a claim, and the reading."""
    for reading in READINGS:
        for rate in DROPOUTS if reading == "self" else (0.0,):
            for attention in ATTENTIONS[::-1]:
                dropout = f"dropout {rate:g}" if rate else "no dropout"
                where = f"{NAMES[attention]}, {dropout}, {READING_NAMES[reading]}"
                yield {"where": where, "of": {"attention": attention, "dropout": rate}, "reading": reading}


def claim_number(text: str, source: str, quantity: str, low: float, **choices: Any) -> Iterator[Claim]:
    """A number of each reading is large enough."""
    for setting in list_settings():
        reading = setting.pop("reading")
        yield Reads(text=text, source=source, quantity=f"{reading}_{quantity}", low=low, **setting, **choices)


def claim_excess(text: str, source: str, quantity: str, over: str, by: float, **choices: Any) -> Iterator[Claim]:
    """A number of each reading exceeds another one."""
    for setting in list_settings():
        reading = setting.pop("reading")
        yield Exceeds(
            text=text,
            source=source,
            quantity=f"{reading}_{quantity}",
            over=over.format(reading),
            by=by,
            **setting,
            **choices,
        )


def claim_layers(text: str, source: str, quantity: str, *, rises: bool) -> Iterator[Claim]:
    """A number of each reading rises, or falls, from early to late layers."""
    for setting in list_settings():
        reading = setting.pop("reading")
        later, earlier, layers = HALVES[reading]
        first, second = (later, earlier) if rises else (earlier, later)
        yield Exceeds(
            text=text,
            source=source,
            quantity=f"{reading}_{quantity}_{first}",
            over=f"{reading}_{quantity}_{second}",
            by=LATER,
            **{**setting, "where": f"{setting['where']}, {layers}"},
        )


def claim_related() -> Iterator[Claim]:
    """Progressions in the same direction have similar codes."""
    for one, other in RELATED:
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


class Figure5(Experiment):
    """Rules in the latent codes of the runs of `sraven-paper`, and answers after a swap of codes."""

    name = "figure-5"
    question = "Do the latent codes of SRAVEN networks identify rules, and do answers follow the codes?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    claims = (
        *claim_number(
            "rules are decodable from the latent code (F1 above the untrained network and the majority)",
            "figure 5F",
            "f1_lead",
            MARGIN,
            headline=True,
        ),
        *claim_layers("rules are more decodable in later layers (F1)", "section 4.4, figure 5F", "f1", rises=True),
        *claim_number(
            "addition and subtraction have similar codes (cosine of mean codes)",
            "figure 5E",
            "cosine_last",
            ALIKE,
            headline=True,
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
            headline=True,
        ),
        *claim_excess(
            "codes of the last layer cluster by rule more than by target (neighbours)",
            "figures 5A and 5B",
            "purity_rule_last",
            "{}_purity_target_last",
            LATER,
        ),
        *claim_layers("later layers cluster more by rule (neighbours)", "figure A6B", "purity_rule", rises=True),
        *claim_layers(
            "early layers cluster more by target (neighbours)",
            "section 4.4, figure A6A",
            "purity_target",
            rises=False,
        ),
        OutOfReach(
            text="with 16 layers, codes of early layers cluster by target and those of the last by rule",
            where="softmax",
            source="section 4.4, figure A7",
            needs="a softmax transformer of 16 layers that is trained on 40 million instances",
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
            MOST,
            ours=True,
        ),
        *claim_excess(
            "codes of the same rule leave more answers right than codes of another (all layers)",
            "our question",
            "swap_same_rule_all_layers",
            "{}_swap_own_all_layers",
            KEPT,
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

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [tabulate_rules(self.measure_runs(finished, device)), *super().tables(finished, device)]

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
