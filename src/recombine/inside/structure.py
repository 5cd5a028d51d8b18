"""The shape of the latent codes: their neighbourhoods, similarities and a map.

For a sample of rows, as many ID as OOD: t-SNE to two dimensions (van der Maaten & Hinton 2008), and two numbers computed from
the codes themselves, for each of the two colourings, by target and by module:

- purity: of a row's ten nearest neighbours, the share with the same colour; `chance` is the share in the whole sample;
- silhouette: (b - a) / max(a, b), with a the mean distance to rows of the same colour and b to those of the next (Rousseeuw
  1987); -1 to 1.

Where a row has several modules, both are means over modules, with the two colours present and absent, and purity is that of
the rows where the module is present. Similarity is the cosine between the mean codes of modules (figure 5E), also with the
mean of all codes subtracted.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Num

from recombine.inside.collect import Activations
from recombine.inside.result import Neighbourhood, SiteSimilarity, SiteStructure

NUM_SAMPLED = 1_500
NUM_NEIGHBOURS = 10
PERPLEXITY = 30
NUM_TARGET_BINS = 8
MAX_TARGET_VALUES = 16  # more different targets than these are binned


def sample_rows(activations: Activations, size: int = NUM_SAMPLED) -> Int[np.ndarray, " sampled"]:
    """The first rows of `id` and of `ood`, equally many."""
    trained, held_out = activations.rows("id"), activations.rows("ood")
    return np.concatenate([trained[: size // 2], held_out[: size // 2]])


def bin_targets(target: Num[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Few different targets as they are, many in bins of equal size."""
    values, number = np.unique(target, return_inverse=True)
    if len(values) <= MAX_TARGET_VALUES:
        return number
    edges = np.quantile(target, np.linspace(0, 1, NUM_TARGET_BINS + 1)[1:-1])
    return np.searchsorted(edges, target)


def measure_structure(activations: Activations, site: str, rows: Int[np.ndarray, " sampled"]) -> SiteStructure:
    """Purity and silhouette of a site, by target and by module."""
    from sklearn.metrics import pairwise_distances

    distances = pairwise_distances(activations.by_site[site][rows])
    np.fill_diagonal(distances, np.inf)
    neighbours = np.argsort(distances, axis=1, kind="stable")[:, : min(NUM_NEIGHBOURS, len(rows) - 1)]
    np.fill_diagonal(distances, 0)
    structure: SiteStructure = {}
    if activations.target is not None:
        structure["target"] = _measure_classes(distances, neighbours, bin_targets(activations.target[rows]))
    if activations.exclusive:
        structure["module"] = _measure_classes(distances, neighbours, activations.labels[rows].argmax(axis=1))
    elif activations.binary:
        structure["module"] = _measure_presence(distances, neighbours, activations.labels[rows] > 0.5)
    return structure


def _measure_classes(distances: np.ndarray, neighbours: np.ndarray, colour: np.ndarray) -> Neighbourhood:
    counts = np.bincount(colour)
    chance = (counts * (counts - 1)).sum() / (len(colour) * (len(colour) - 1))
    purity = (colour[neighbours] == colour[:, None]).mean()
    return {"purity": float(purity), "chance": float(chance), "silhouette": _silhouette(distances, colour)}


def _measure_presence(distances: np.ndarray, neighbours: np.ndarray, present: np.ndarray) -> Neighbourhood:
    varying = [m for m in range(present.shape[1]) if 1 < present[:, m].sum() < len(present)]
    if not varying:
        return {"purity": None, "chance": None, "silhouette": None}
    purity = [present[:, m][neighbours[present[:, m]]].mean() for m in varying]
    chance = [(present[:, m].sum() - 1) / (len(present) - 1) for m in varying]
    silhouettes = [_silhouette(distances, present[:, m].astype(int)) for m in varying]
    known = [value for value in silhouettes if value is not None]
    return {
        "purity": float(np.mean(purity)),
        "chance": float(np.mean(chance)),
        "silhouette": float(np.mean(known)) if known else None,
    }


def _silhouette(distances: np.ndarray, colour: np.ndarray) -> float | None:
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(colour)) < len(colour):
        return None
    return float(silhouette_score(distances, colour, metric="precomputed"))


def measure_similarity(activations: Activations, site: str) -> SiteSimilarity:
    """Cosine similarity of the mean codes of modules, over all rows; modules that no row has are left out."""
    values = activations.by_site[site].astype(np.float64)
    present = [m for m in range(len(activations.modules)) if activations.labels[:, m].any()]
    means = np.stack([values[activations.labels[:, m] > 0.5].mean(axis=0) for m in present])
    return {
        "modules": [activations.modules[m] for m in present],
        "cosine": _cosine(means).round(6).tolist(),
        "centred": _cosine(means - values.mean(axis=0)).round(6).tolist(),
    }


def _cosine(vectors: Float[np.ndarray, "modules features"]) -> Float[np.ndarray, "modules modules"]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.maximum(lengths, 1e-12)
    return directions @ directions.T


def embed(values: Float[np.ndarray, "rows features"], *, seed: int = 0) -> Float[np.ndarray, "rows 2"]:
    """t-SNE; codes that hardly vary all lie at the origin."""
    from sklearn.manifold import TSNE

    deviation = values.std(axis=0).max()
    if deviation <= 1e-6 * (np.abs(values).max() + 1e-12) or len(values) < 4:
        return np.zeros((len(values), 2), dtype=np.float32)
    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(values).astype(np.float32)
