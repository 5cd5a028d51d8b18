"""What happens to the answer when codes are ablated or swapped."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report import figures as inside_figures
from recombine.report import figures as swap_figures
from recombine.report.figures import Figure
from recombine.report.findings import gather, read_ablations, read_swap
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 70


def build(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_ablations)
    swaps, swap_problems = gather(runs, read_swap)
    drawn: dict[str, Figure] = {}
    for run, ablation in found:
        drawn[f"layers-{run.series}"] = inside_figures.layers_figure(run, ablation)
        for kind in dict.fromkeys(change.kind for change in ablation["heads"]):
            drawn[f"heads-{run.series}-{kind}"] = inside_figures.heads_figure(run, ablation, kind)
    for run, swap in swaps:
        draw = swap_figures.rules_figure if swap["kind"] == "rules" else swap_figures.functions_figure
        drawn |= {f"swap-{run.series}-{split}": draw(rows, swap["what"]) for split, rows in swap["splits"].items()}
        drawn |= {
            f"by-rule-{run.series}-{split}": swap_figures.by_rule_figure(table)
            for split, table in swap["by_rule"].items()
        }
    content = {
        "found": found,
        "swaps": swaps,
        "kinds": list(dict.fromkeys(change.kind for _, ablation in found for change in ablation["heads"])),
        "runs": [run for run in runs if any(run is shown for shown, _ in [*found, *swaps])],
        "problems": list(dict.fromkeys(problems + swap_problems)),
    }
    if not any(content[name] for name in ("runs", "problems")):
        return None
    return Section(name="ablations", title="Ablations", content=content, figures=drawn)
