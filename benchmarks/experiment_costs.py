"""Measure what the runs of every experiment cost at every scale, for the estimates that `recombine reproduce list` shows.

    python benchmarks/experiment_costs.py [FOLDER]

times a few steps and two short evaluations of each distinct size with one thread, and writes them to costs.json in the folder
(default: the package's own). Sizes that are there already are kept. Times are CPU times, so other work hardly changes them.
"""

import sys
from functools import partial
from pathlib import Path

from recombine.sweeps.costs import PACKAGED, measure_costs
from recombine.tasks.base import SCALES
from recombine_papers import EXPERIMENTS

TOO_LARGE = {("language", "paper")}  # a step takes minutes and 17 GB of memory


def main(folder: Path) -> None:
    for scale in SCALES:
        for name, experiment in EXPERIMENTS.items():
            if (name, scale) not in TOO_LARGE:
                configs = [record.config for record in experiment.records(scale)]
                measure_costs(configs, folder, say=partial(print, scale, name, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PACKAGED)
