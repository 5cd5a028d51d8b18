"""The sequence models of this package on a task, next to the peers in this folder.

python examples/peers/package_models.py in_context tiny runs
python examples/peers/package_models.py sequence_teacher small runs
recombine leaderboard runs -o leaderboard.html
"""

from __future__ import annotations

import sys
from dataclasses import replace

import recombine


def configure(task: str, scale: str) -> list[recombine.RunConfig]:
    """In context: transformers with three kinds of attention, and one with a hypernetwork; otherwise the four students."""
    if task != "in_context":
        teacher = recombine.default_run(task, scale).task  # of the same class for all of them
        runs = [recombine.default_run(task, scale, name) for name in ("deep_set", "attention", "ssm", "rnn")]
        return [replace(run, task=teacher) for run in runs]
    transformer = recombine.default_run(task, scale, "transformer")
    return [
        *(
            replace(transformer, model=replace(transformer.model, attention=name))
            for name in ("softmax", "linear", "hyla")
        ),
        recombine.default_run(task, scale, "hypernetwork_transformer"),
    ]


if __name__ == "__main__":
    task, scale, folder = sys.argv[1:] if len(sys.argv) == 4 else ("in_context", "tiny", "runs")
    for config in configure(task, scale):
        run = recombine.train_run(config, out=folder)
        print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
