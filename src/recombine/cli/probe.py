"""recombine probe RUN: look inside a trained run or, with --activations FILE, inside any model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.flags import RunOutput
from recombine.cli.main import Argument, parse
from recombine.foundation.display import Cell, Table, Value, format_number
from recombine.foundation.errors import InputError
from recombine.inside.probe import UnsavedProbeError, probe_activations, probe_run
from recombine.inside.result import DECODER_TITLES, ProbeResult
from recombine.tasks.base import Task
from recombine.training.schema import Json


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(RunOutput):
    """Look inside a run: decode the modules from latent codes and activations, then change the codes and see what happens."""

    examples = (
        "recombine probe runs/sraven-hyla-0123456789ab --no-tsne",
        "recombine probe --activations activations.npz",
    )

    run: Annotated[Path | None, Argument(metavar="RUN", positional=True)] = None
    """Run directory. Writes probe.json and probe.npz there."""
    activations: Path | None = None
    """Instead of a run, an npz file with the arrays activations, labels and split."""
    num_instances: int = 4_000
    """Instances per split."""
    tsne: bool = True
    """Compute a t-SNE map of the codes, which takes longest."""
    save_activations: bool = False
    """Also write the residual stream and hidden activations to probe.npz."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, ..."""


def run(argv: list[str]) -> None:
    options = parse(ProbeOptions, argv, prog="probe")
    if (options.run is None) == (options.activations is None):
        raise InputError("expected a run directory or --activations FILE, one of the two; see recombine probe --help")

    def say(part: str) -> None:
        options.say(f"probe: {part}")

    try:
        if options.activations is not None:
            result = probe_activations(options.activations, tsne=options.tsne, say=say)
        else:
            assert options.run is not None
            chosen = options.select("num_instances", "tsne", "save_activations", "device", "code")
            result = probe_run(options.run, say=say, **chosen)
    except UnsavedProbeError as error:
        options.show(dict(error.result.numbers), *tables(error.result))
        raise
    options.show(dict(result.numbers), *tables(result))


def tables(result: ProbeResult) -> list[Table | str]:
    """All results except the pictures, as tables."""
    numbers: Json = dict(result.numbers)
    shown: list[Table | str] = []
    if "decoders" in numbers:
        read = numbers.get("reading", {"labels": "labels", "instances": "the rows of the file"})
        shown.append(decoder_table(numbers["decoders"], f"{read['labels']}, decoded from {read['instances']}"))
    for variant, words in numbers.get("reading", {}).items():
        if f"decoders_{variant}" in numbers:
            shown.append(decoder_table(numbers[f"decoders_{variant}"], f"the same, {words}"))
    if "structure" in numbers:
        shown.append(structure_table(numbers["structure"]))
    if "ablations" in numbers:
        shown.append(layer_table(numbers["ablations"]))
    if "swap" in numbers:
        shown.append(swap_table(numbers["swap"]))
    shown += [f"not measured: {part} ({reason})" for part, reason in numbers["skipped"].items()]
    seconds = numbers["seconds"]
    shown.append(f"{seconds['total']:.0f} s, of which t-SNE {100 * numbers['tsne_share']:.0f} %")
    return shown


DECODER_LEGEND = (
    "(seen: id, held out: ood)\nThe last four columns are on held-out compositions. "
    "majority: always the most frequent label; control: labels shuffled between compositions; "
    "selective: ood minus control; untrained: the same network before training"
)


def decoder_table(decoders: Json, title: str) -> Table:
    """One row per site: the score of a linear decoder of the labels, and of an uninformed one."""
    metric = "f1" if any("f1" in scores.get("id", {}) for scores in decoders.values()) else "r2"
    rows = []
    for site, scores in decoders.items():
        ood = scores.get("ood", {})
        references = [ood.get(name, {}).get(metric) for name in ("majority", "control", "selectivity", "untrained")]
        rows.append((site, scores.get("id", {}).get(metric), ood.get(metric), *references))
    return Table(
        title=title,
        columns=("site", "id", "ood", "majority", "control", "selective", "untrained"),
        rows=tuple(rows),
        note=f"{DECODER_TITLES[metric]} of a linear decoder, fitted on seen compositions only {DECODER_LEGEND}",
    )


def structure_table(structure: Json) -> Table:
    """Purity and silhouette of each site."""
    return Table(
        title="neighbourhoods of codes",
        columns=("site", "colour", "purity", "chance", "untrained", "silhouette"),
        rows=tuple(
            (site, colour, *(values.get(name) for name in ("purity", "chance", "untrained", "silhouette")))
            for site, colours in structure.items()
            for colour, values in colours.items()
        ),
        note="purity: share of the ten nearest neighbours with the same colour; untrained: purity before training",
    )


def layer_table(ablations: Json) -> Table:
    """How the score changes when the codes of a layer are changed."""
    base = ", ".join(f"{split} {format_number(value)}" for split, value in ablations["base"].items())
    words = {"zero": "zero", "mean": "mean", "swap": "swapped"}
    return Table(
        title=f"codes of a layer changed: {Task.metric(ablations['metric']).title}, unchanged: {base}",
        columns=("layer", "codes", "split", "change (95 % interval)"),
        rows=tuple(
            (row["layer"], words[row["kind"]], split, _cell(*(row[split][name] for name in ("change", "low", "high"))))
            for row in ablations["layers"]
            for split in ablations["base"]
        ),
        note="swapped: each instance gets the codes of an instance with another composition",
    )


def swap_table(swap: Json) -> Table:
    """Whose answer the model gives when the last token gets the codes of another instance."""
    by_rule = swap["kind"] == "rules"
    first, *others = ("other", "own", "same_rule") if by_rule else ("follows",)
    what = "rule" if swap.get("rules") else "answer"
    note = (
        f"other, own: the answer follows the swapped-in {what}, or its own; "
        f"same {what}: right with codes of the same {what}"
    )
    rows: list[tuple[Value, ...]] = []
    for split, results in swap["splits"].items():
        arms = [("none", "", results["base"])] if by_rule else []
        arms += [(" ".join(map(str, arm["layers"])), arm["keys"], arm) for arm in results["arms"]]
        for layers, keys, arm in arms:
            low, high = arm["interval"]
            rows.append((split, layers, keys, _cell(arm[first], low, high), *(arm.get(name) for name in others)))
    return Table(
        title="codes of the last token swapped",
        columns=(
            "split",
            "layers",
            "keys",
            f"{first} (95 % interval)",
            *(name.replace("_rule", f" {what}") for name in others),
        ),
        rows=tuple(rows),
        note=note if by_rule else "0: ignores the code; 1: gives the donor's answer",
    )


def _cell(value: float | None, low: float | None, high: float | None) -> Cell | None:
    return None if value is None else Cell(value=value, low=low, high=high)
