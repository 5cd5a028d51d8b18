"""One stored run of each paper, trained again from nothing: its split is the same, and its scores are those in `results/`.

Rounding differs between processors, and SRAVEN amplifies it, hence the tolerances. Each is far below the leads of its claims.
"""

from pathlib import Path

import pytest

from recombine.training.run import train_run
from recombine_papers import EXPERIMENTS

RESULTS = Path(__file__).parents[2] / "results"
RUNS = [
    ("figure-4", "small", {"attention": "linear", "size": "small"}, 1, 0.05),
    ("in-context", "small", {"setting": "connected", "model": "bottleneck", "trunk": "softmax"}, 0, 0.03),
    ("length-generalization", "paper", {"student": "deep_set", "rate": 1e-3}, 0, 0.01),
    ("scale-width", "small", {"width": 16}, 0, 0.01),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale", "settings", "seed", "tolerance"), RUNS, ids=[run[0] for run in RUNS])
def test_a_stored_run_trained_again_has_its_scores(unchecked, tmp_path, name, scale, settings, seed, tolerance):
    experiment = EXPERIMENTS[name]
    group = experiment.read(RESULTS, scale).find(**settings)
    (stored,) = [run for run in group.runs if run.record.seed == seed]
    result = train_run(stored.record.config, out=tmp_path).read_json("result.json")
    assert result["split_sha256"] == stored.result["split_sha256"]
    assert result["steps"] == stored.result["steps"]
    for split in ("test", "ood"):
        score = result["scores"][split][experiment.metric]["value"]
        assert score == pytest.approx(stored.score(split, experiment.metric), abs=tolerance), split
