"""Linear decoders of many modules at once: logistic and ridge regression, each a matrix of weights with a last row of biases.

Logistic regression minimises, for every module m,

    strength · Σ_rows log(1 + exp(-y z)) + ½ |w_m|²,   z = x · w_m + b_m,   y = ±1,

as scikit-learn's `LogisticRegression(C=strength)` does, but for all modules in one go, so that each pass over the rows
serves all of them, and in coordinates in which the problem is well conditioned: along the principal axes of x, each
scaled by its expected curvature. The same numbers, an order of magnitude faster. Ridge regression is scikit-learn's.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import expit

MAX_ITERATIONS = 100
TOLERANCE = 1e-5  # of the gradient of the mean loss
TYPICAL_CURVATURE = 0.1  # of the logistic loss, p (1 - p)

Weights = Float[np.ndarray, "_ modules"]


def fit_logistic(
    x: Float[np.ndarray, "rows features"], y: Float[np.ndarray, "rows modules"], *, strength: float
) -> Weights:
    """Weights and biases (features + 1, modules)."""
    num_rows, num_features = x.shape
    decay = 1 / (strength * num_rows)
    variance, axes = np.linalg.eigh((x.T @ x).astype(np.float64) / num_rows)
    scale = 1 / np.sqrt(TYPICAL_CURVATURE * np.maximum(variance, 0) + decay)
    basis = (axes * scale).astype(x.dtype)
    rotated, penalty = x @ basis, (decay * scale**2)[:, None]

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(num_features + 1, -1)
        z = decide(rotated, weights)
        losses = np.logaddexp(0, z) - y * z
        error = (expit(z) - y) / num_rows
        gradient = np.vstack([rotated.T @ error + penalty * weights[:-1], error.sum(axis=0)])
        value = losses.sum(dtype=np.float64) / num_rows + 0.5 * (penalty * np.square(weights[:-1])).sum()
        return float(value), gradient.ravel().astype(np.float64)

    options = {"maxiter": MAX_ITERATIONS, "gtol": TOLERANCE, "ftol": 1e-9}
    start = np.zeros((num_features + 1) * y.shape[1])
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    weights = found.x.reshape(num_features + 1, -1)
    return np.vstack([(axes * scale) @ weights[:-1], weights[-1:]])


def fit_ridge(
    x: Float[np.ndarray, "rows features"], y: Float[np.ndarray, "rows modules"], *, strength: float
) -> Weights:
    """The same for the squared error, with penalty 1 / strength."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / strength).fit(x, y)
    return np.vstack([model.coef_.reshape(y.shape[1], -1).T, np.atleast_1d(model.intercept_)])


def decide(x: Float[np.ndarray, "rows features"], weights: Weights) -> Float[np.ndarray, "rows modules"]:
    """The linear predictor: positive where a logistic decoder says yes; the value itself for ridge."""
    weights = weights.astype(x.dtype)
    return x @ weights[:-1] + weights[-1]
