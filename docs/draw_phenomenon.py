"""Draw the picture of the first page: scores on seen and held-out compositions, from the runs of `recombine reproduce demo`.

python docs/draw_phenomenon.py runs/demo docs/images/phenomenon.png
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt

from recombine.training.directory import find_runs
from recombine.training.intervals import SeedScore, score_seeds

TITLES = {"mlp": "multilayer perceptron", "hypernetwork": "linear hypernetwork"}
COLOURS = {"test": "#9aa7b4", "ood": "#0b5c8f"}


def read_scores(folder: str) -> dict[str, dict[str, SeedScore]]:
    """The mean R² over seeds of each model, on seen and held-out compositions."""
    results = [run.read_json("result.json") for run in find_runs(folder) if run.finished]
    sums = {kind: [result["composition_sums"] for result in results if result["model"] == kind] for kind in TITLES}
    return {
        kind: {split: score_seeds([each[split]["r2"] for each in own]) for split in COLOURS}
        for kind, own in sums.items()
    }


def main() -> None:
    scores = read_scores(sys.argv[1])
    figure, axes = plt.subplots(figsize=(7, 2.9), dpi=160)
    for place, kind in enumerate(TITLES):
        for offset, split in ((-0.19, "test"), (0.19, "ood")):
            score = scores[kind][split]
            ends = [[score.value - score.low], [score.high - score.value]]
            label = {"test": "seen compositions", "ood": "held-out compositions"}[split] if place == 0 else None
            axes.bar(place + offset, score.value, 0.36, color=COLOURS[split], label=label)
            axes.errorbar(place + offset, score.value, yerr=ends, color="#1d2125", capsize=3, linewidth=1.2)
            axes.text(place + offset, 0.04, f"{score.value:.2f}", color="white", ha="center", weight="bold")
    axes.axhline(1, color="#767f88", linewidth=1, linestyle=":")
    axes.text(1.52, 1, "ceiling", va="center", fontsize=9, color="#4b535b")
    axes.set(xticks=range(len(TITLES)), xticklabels=TITLES.values(), ylabel="R²", ylim=(0, 1.12), xlim=(-0.5, 1.5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
    figure.savefig(sys.argv[2], bbox_inches="tight", facecolor="white")
    print(scores)


if __name__ == "__main__":
    main()
