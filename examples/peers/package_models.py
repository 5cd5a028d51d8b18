"""The sequence models of this package on the in-context task, next to the peers in this folder.

python examples/peers/package_models.py small runs
recombine leaderboard runs -o leaderboard.html
"""

from __future__ import annotations

import sys
from dataclasses import replace

import recombine


def configure(scale: str) -> list[recombine.RunConfig]:
    """Transformers with softmax and hypernetwork attention, and one with a hypernetwork as a bottleneck."""
    transformer = recombine.default_run("in_context", scale, "transformer")
    return [
        *(
            replace(transformer, model=replace(transformer.model, attention=name))
            for name in ("softmax", "linear", "hyla")
        ),
        recombine.default_run("in_context", scale, "hypernetwork_transformer"),
    ]


if __name__ == "__main__":
    scale, folder = sys.argv[1:] if len(sys.argv) == 3 else ("tiny", "runs")
    for config in configure(scale):
        run = recombine.train_run(config, out=folder)
        print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
