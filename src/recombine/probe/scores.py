"""Scores of decoders.

For the presence of modules, each a mean over modules with one logistic decoder per module, whose two classes have the same
total weight:

- `f1`;
- `accuracy`, the mean of the accuracy on rows with the module and on rows without it;
- `auc`, the area under the ROC curve: how often a row with the module is ranked above one without it, at no threshold;
- `exact`, how often the modules with the highest scores (as many as the row has) are exactly those of the row.

For real-valued labels, `r2` of ridge regression, pooled over modules.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

Scores = dict[str, float]


def score_presence(z: Float[np.ndarray, "rows modules"], labels: Float[np.ndarray, "rows modules"]) -> Scores:
    """F1, accuracy and AUC, means over the modules that are both present and absent in these rows; and `exact`."""
    from scipy.stats import rankdata

    truth, said = labels > 0.5, z > 0
    varying = truth.any(axis=0) & ~truth.all(axis=0)
    hits = (truth & said).sum(axis=0)
    f1 = 2 * hits / np.maximum(truth.sum(axis=0) + said.sum(axis=0), 1)
    num_present, num_absent = truth.sum(axis=0), (~truth).sum(axis=0)
    rejections = (~truth & ~said).sum(axis=0)
    accuracy = (hits / np.maximum(num_present, 1) + rejections / np.maximum(num_absent, 1)) / 2
    rank_sums = (rankdata(z, axis=0) * truth).sum(axis=0) - num_present * (num_present + 1) / 2
    auc = rank_sums / np.maximum(num_present * num_absent, 1)
    means = {name: _mean(values[varying]) for name, values in (("f1", f1), ("accuracy", accuracy), ("auc", auc))}
    return {**means, "exact": float((_take_highest(z, truth.sum(axis=1)) == truth).all(axis=1).mean())}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _take_highest(
    z: Float[np.ndarray, "rows modules"], count: Int[np.ndarray, " rows"]
) -> Bool[np.ndarray, "rows modules"]:
    """The modules with the highest scores of each row, as many as `count` says."""
    rank = np.argsort(np.argsort(-z, axis=1, kind="stable"), axis=1, kind="stable")
    return rank < count[:, None]


def score_values(z: Float[np.ndarray, "rows modules"], labels: Float[np.ndarray, "rows modules"]) -> Scores:
    """Explained variance, pooled over modules; predicting the mean of these very rows would give 0."""
    error = np.square(labels - z).sum(dtype=np.float64)
    total = np.square(labels - labels.mean(axis=0)).sum(dtype=np.float64)
    return {"r2": float(1 - error / total) if total > 0 else 0.0}
