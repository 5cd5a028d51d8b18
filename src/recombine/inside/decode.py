"""Linear decoders of activations, compared with decoders that have no information.

A decoder is fitted on the rows `fit` alone and scored on `id` (other instances of the same compositions) and on `ood`
(compositions that neither the network nor the decoder was trained on). Features are standardised. The strength of
regularisation is chosen on the fitting side, by cross-validation over *compositions*, so that a strength that only memorises
compositions is not chosen. Presence of modules is decoded by one logistic decoder per module, whose two classes have the same
total weight. Its scores are means over modules:

- `f1`;
- `accuracy`, the mean of the accuracy on rows with the module and on rows without it;
- `auc`, the area under the ROC curve: how often a row with the module is ranked above one without it, at no threshold;
- `exact`, how often the modules with the highest scores (as many as the row has) are exactly those of the row.

Labels are also decoded by ridge regression, the only decoder of real-valued labels. Its score `r2` is pooled over modules.
Each score is compared with three others:

- majority: the best score without activations: always yes for F1, the more frequent answer for the rest;
- control: a decoder of the same kind and strength for labels that are permuted between the kinds of rows (a kind: composition
  and labels), so that they can be memorised but not inferred (Hewitt & Liang 2019);
- selectivity: the score minus the control's. It separates a code that represents modules from one that only distinguishes
  compositions.

Logistic regression minimises, for every module m,

    strength · Σ_rows c(y) log(1 + exp(-y z)) + ½ |w_m|²,   z = x · w_m + b_m,   y = ±1,

where c gives the rows with the module the same total weight as those without it, as scikit-learn's
`LogisticRegression(C=strength, class_weight="balanced")` does: otherwise a module that is in one row of six would hardly
ever be predicted. All modules are fitted at once, so that each pass over the rows serves all of them, in coordinates in
which the problem is well conditioned: along the principal axes of x, each scaled by its expected curvature. The result is
the same, an order of magnitude faster. Ridge regression is scikit-learn's. The weights of a decoder are a matrix (features + 1,
modules) whose last row holds the biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int

from recombine.foundation.display import track
from recombine.foundation.errors import InputError
from recombine.inside.collect import Activations
from recombine.inside.result import SPLITS, Number, SiteDecoder, SplitDecoderScores

MAX_ITERATIONS = 100
TOLERANCE = 1e-3  # of the gradient of the mean loss: scores do not change in the third digit
TYPICAL_CURVATURE = 0.1  # of the logistic loss, p (1 - p)

LOGISTIC_STRENGTHS = (1e-3, 1e-1, 10.0)  # from strong regularisation to weak
RIDGE_STRENGTHS = (1e-4, 1e-2, 1.0)
NUM_FOLDS = 3
MAX_DEVIATIONS = 10.0  # of a standardised feature
MAX_FITTING_ROWS = 4_000  # more would hardly move a linear decoder
MAX_SELECTION_ROWS = 2_000  # of these, to choose the strength on

Scores = dict[str, float]
Weights = Float[np.ndarray, "_ modules"]
DecoderKind = Literal["logistic", "ridge"]
FitPath = Callable[[np.ndarray, np.ndarray, Sequence[float]], Iterator[Weights]]


def fit_logistic_path(
    x: Float[np.ndarray, "rows features"], y: Float[np.ndarray, "rows modules"], strengths: Sequence[float]
) -> Iterator[Weights]:
    """Logistic regression for one strength after another, each search starting where the last one ended."""
    from scipy.optimize import minimize

    num_rows, num_features = x.shape
    variance, axes = np.linalg.eigh((x.T @ x).astype(np.float64) / num_rows)
    weights = np.zeros((num_features + 1, y.shape[1]))
    balance = balance_classes(y)
    for strength in strengths:
        decay = 1 / (strength * num_rows)
        scale = 1 / np.sqrt(TYPICAL_CURVATURE * np.maximum(variance, 0) + decay)
        basis = axes * scale
        start = np.vstack([(axes.T @ weights[:-1]) / scale[:, None], weights[-1:]])
        objective = _objective(x @ basis.astype(x.dtype), y, balance, (decay * scale**2)[:, None])
        options = {"maxiter": MAX_ITERATIONS, "gtol": TOLERANCE, "ftol": 1e-8}
        solution = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options).x
        rotated = solution.reshape(num_features + 1, -1)
        weights = np.vstack([basis @ rotated[:-1], rotated[-1:]])
        yield weights


def balance_classes(y: Float[np.ndarray, "rows modules"]) -> Float[np.ndarray, "rows modules"]:
    """The weight of each row for each module: present and absent count the same, 1 on average."""
    num_present = y.sum(axis=0)
    num_absent = len(y) - num_present
    return np.where(y > 0.5, len(y) / np.maximum(2 * num_present, 1), len(y) / np.maximum(2 * num_absent, 1)).astype(
        y.dtype
    )


def _objective(
    x: np.ndarray, y: np.ndarray, balance: np.ndarray, penalty: np.ndarray
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    balance = balance / len(x)

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, y.shape[1])
        z = decide(x, weights)
        small = np.exp(-np.abs(z))
        losses = balance * (np.maximum(z, 0) + np.log1p(small) - y * z)
        error = balance * (np.where(z > 0, 1, small) / (1 + small) - y)
        gradient = np.vstack([x.T @ error + penalty * weights[:-1], error.sum(axis=0)])
        value = losses.sum(dtype=np.float64) + 0.5 * (penalty * np.square(weights[:-1])).sum()
        return float(value), gradient.ravel().astype(np.float64)

    return loss_and_gradient


def fit_ridge(
    x: Float[np.ndarray, "rows features"], y: Float[np.ndarray, "rows modules"], *, strength: float
) -> Weights:
    """Ridge regression with penalty 1 / strength."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / strength).fit(x, y)
    return np.vstack([model.coef_.reshape(y.shape[1], -1).T, np.atleast_1d(model.intercept_)])


def decide(x: Float[np.ndarray, "rows features"], weights: Weights) -> Float[np.ndarray, "rows modules"]:
    """The linear predictor: positive where a logistic decoder says yes; the value itself for ridge."""
    weights = weights.astype(x.dtype)
    return x @ weights[:-1] + weights[-1]


def score_presence(z: Float[np.ndarray, "rows modules"], labels: Float[np.ndarray, "rows modules"]) -> Scores:
    """F1, accuracy and AUC, means over the modules that are both present and absent in these rows; and `exact`."""
    from scipy.stats import rankdata

    truth, predicted = labels > 0.5, z > 0
    num_present, num_absent = truth.sum(axis=0), (~truth).sum(axis=0)
    varying = (num_present > 0) & (num_absent > 0)
    hits, rejections = (truth & predicted).sum(axis=0), (~truth & ~predicted).sum(axis=0)
    rank_sums = (rankdata(z, axis=0) * truth).sum(axis=0) - num_present * (num_present + 1) / 2
    by_module = {
        "f1": 2 * hits / np.maximum(num_present + predicted.sum(axis=0), 1),
        "accuracy": (hits / np.maximum(num_present, 1) + rejections / np.maximum(num_absent, 1)) / 2,
        "auc": rank_sums / np.maximum(num_present * num_absent, 1),
    }
    means = {name: float(values[varying].mean()) if varying.any() else 0.0 for name, values in by_module.items()}
    rank = np.argsort(np.argsort(-z, axis=1, kind="stable"), axis=1, kind="stable")
    highest = rank < truth.sum(axis=1)[:, None]  # as many modules as the row has
    return {**means, "exact": float((highest == truth).all(axis=1).mean())}


def score_values(z: Float[np.ndarray, "rows modules"], labels: Float[np.ndarray, "rows modules"]) -> Scores:
    """Explained variance, pooled over modules; predicting the mean of these very rows would give 0."""
    error = np.square(labels - z).sum(dtype=np.float64)
    total = np.square(labels - labels.mean(axis=0)).sum(dtype=np.float64)
    return {"r2": float(1 - error / total) if total > 0 else 0.0}


def decode_components(activations: Activations, *, seed: int = 0, controlled: bool = True) -> dict[str, SiteDecoder]:
    """Decoders of every site; see `recombine.inside.result` for the keys."""
    from threadpoolctl import threadpool_limits

    fitted = activations.labels[activations.rows("fit")[:MAX_FITTING_ROWS]]
    modules = np.flatnonzero((fitted != fitted[:1]).any(axis=0))
    if len(modules) == 0:
        raise InputError("every row to fit on has the same labels: expected at least two classes")
    control = permute_labels(activations, seed) if controlled else None
    decode_site = partial(_decode_site, activations=activations, modules=modules, control=control)
    # thousands of small products: a thread for each site, none within a product, where they would wait for each other
    with threadpool_limits(1), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        decoders = pool.map(decode_site, activations.by_site.values())
        sites = track(list(activations.by_site), "decoding sites")
        return dict(zip(sites, decoders, strict=True))


def permute_labels(activations: Activations, seed: int) -> Float[np.ndarray, "rows modules"]:
    """Labels of the control, permuted between the kinds of rows on the same side of the split."""
    generator = np.random.default_rng(seed)
    permuted = activations.labels.copy()
    for side in (activations.rows("fit", "id"), activations.rows("ood")):
        if len(side) == 0:
            continue
        kinds = np.column_stack([activations.composition[side], activations.labels[side]])
        different, kind = np.unique(kinds, axis=0, return_inverse=True)
        order = generator.permutation(len(different))
        permuted[side] = different[order][kind.reshape(-1), 1:]
    return permuted


def _decode_site(
    values: np.ndarray, activations: Activations, modules: np.ndarray, control: np.ndarray | None
) -> SiteDecoder:
    """Decoders of both kinds, their scores, and those of the majority and of the control; per module, of the first kind."""
    fitted = activations.rows("fit")[:MAX_FITTING_ROWS]
    x, labels = standardise(values, fitted), activations.labels[:, modules]
    permuted = None if control is None else control[:, modules]
    names = [activations.modules[module] for module in modules]
    decoder: SiteDecoder = {"num_features": values.shape[1], "strength": {}, "cross_validated": {}, "modules": {}}
    for kind in ("logistic", "ridge") if activations.binary else ("ridge",):
        fit_path, _, score = KINDS[kind]
        strength, cross_validated = choose_strength(x, labels, activations.composition, fitted, kind)
        decoder["strength"][kind] = strength
        decoder["cross_validated"] |= cross_validated
        weights = next(fit_path(x[fitted], labels[fitted], [strength]))
        control_weights = None if permuted is None else next(fit_path(x[fitted], permuted[fitted], [strength]))
        for split in SPLITS:
            rows = activations.rows(split)
            if len(rows) == 0:
                continue
            z = decide(x[rows], weights)
            scores = score(z, labels[rows])
            empty: SplitDecoderScores = {"majority": {}, "control": {}, "selectivity": {}}
            found = decoder.setdefault(split, empty)
            found.update(cast(Any, scores))
            found["majority"] |= _score_constant(labels[fitted], labels[rows], kind)
            if permuted is not None and control_weights is not None:
                control_scores = score(decide(x[rows], control_weights), permuted[rows])
                found["control"] |= control_scores
                found["selectivity"] |= {name: scores[name] - control_scores[name] for name in scores}
            if split not in decoder["modules"]:
                decoder["modules"][split] = _score_modules(score, z, labels[rows], names)
    return decoder


def drop_baselines(scores: SplitDecoderScores) -> dict[str, Number]:
    """The scores alone, without the baselines that they are compared to."""
    return cast(dict[str, Number], {name: value for name, value in scores.items() if not isinstance(value, dict)})


def find_best_site(
    decoders: Mapping[str, SiteDecoder], metrics: Sequence[Literal["f1", "r2"]] = ("f1", "r2")
) -> str | None:
    """The site from which training compositions left out of the fit are decoded best, by the first metric there is."""
    for metric in metrics:
        scores = {site: decoder["cross_validated"].get(metric) for site, decoder in decoders.items()}
        known = {site: score for site, score in scores.items() if score is not None}
        if known:
            return max(known, key=lambda site: known[site])
    return None


def _score_constant(fitted: np.ndarray, labels: np.ndarray, kind: DecoderKind) -> Scores:
    """The best score without activations: the mean, the more frequent answer, and for F1 always yes."""
    frequency = np.broadcast_to(fitted.mean(axis=0), labels.shape)
    if kind == "ridge":
        return score_values(frequency, labels)
    return score_presence(frequency - 0.5, labels) | {"f1": score_presence(np.ones_like(labels), labels)["f1"]}


def _score_modules(
    score: Callable[..., Scores], z: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> dict[str, dict[str, Number]]:
    """Scores of each module that varies in these rows; `exact` means nothing for a single one."""
    varying = [i for i in range(len(names)) if np.ptp(labels[:, i]) > 0]
    scores = {names[i]: score(z[:, [i]], labels[:, [i]]) for i in varying}
    return {name: {key: value for key, value in found.items() if key != "exact"} for name, found in scores.items()}


def standardise(values: Float[np.ndarray, "rows features"], fitted: Int[np.ndarray, " fitted"]) -> np.ndarray:
    """Mean 0 and deviation 1 on the fitting rows; a feature that does not vary there becomes 0.

    One that hardly varies there, such as a unit that fires once, may lie hundreds of deviations off elsewhere and drown all
    others: values are cut off at MAX_DEVIATIONS.
    """
    mean, deviation = values[fitted].mean(axis=0), values[fitted].std(axis=0)
    varies = deviation > 1e-6 * (np.abs(mean) + 1e-12)
    scaled = np.where(varies, (values - mean) / np.where(varies, deviation, 1), 0)
    return scaled.clip(-MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)


def choose_strength(
    x: Float[np.ndarray, "rows features"],
    labels: Float[np.ndarray, "rows modules"],
    composition: Int[np.ndarray, " rows"],
    fitted: Int[np.ndarray, " fitted"],
    kind: DecoderKind,
) -> tuple[float, Scores]:
    """The strength that does best on compositions left out of the fit, and its scores there.

    Regularisation is weakened until that no longer helps. With fewer than two compositions there is nothing to leave out: it
    is then the middle strength, without scores.
    """
    from sklearn.model_selection import GroupKFold

    fit_path, strengths, score = KINDS[kind]
    rows = fitted[:MAX_SELECTION_ROWS]
    num_folds = min(NUM_FOLDS, len(np.unique(composition[rows])))
    if num_folds < 2:
        return strengths[len(strengths) // 2], {}
    folds = [(rows[a], rows[b]) for a, b in GroupKFold(num_folds).split(rows, groups=composition[rows])]
    paths = [fit_path(x[inside], labels[inside], strengths) for inside, _ in folds]
    outside = np.concatenate([left_out for _, left_out in folds])
    best: tuple[float, Scores] = (strengths[0], {})
    for strength, fits in zip(strengths, zip(*paths, strict=True), strict=True):
        decisions = [decide(x[left_out], weights) for (_, left_out), weights in zip(folds, fits, strict=True)]
        scores = score(np.concatenate(decisions), labels[outside])
        if best[1] and next(iter(scores.values())) <= next(iter(best[1].values())):
            break
        best = strength, scores
    return best


KINDS: dict[DecoderKind, tuple[FitPath, Sequence[float], Callable[..., Scores]]] = {
    "logistic": (fit_logistic_path, LOGISTIC_STRENGTHS, score_presence),
    "ridge": (
        lambda x, y, strengths: (fit_ridge(x, y, strength=strength) for strength in strengths),
        RIDGE_STRENGTHS,
        score_values,
    ),
}
