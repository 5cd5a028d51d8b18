"""Scores of a language model: cross-entropy, bits per byte and accuracy per row, and the predictors to compare with.

The loss on held-out text by position: how much a model gains from what it has read.

Windows start at the beginning of a document or in its middle, so the first positions have little context. Positions are
grouped by powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from recombine.foundation.tables import Table
from recombine.tasks.base import Metric, Ratio
from recombine.tasks.sampling import Batch

TEXT, GRAMMAR, RECALL = 0, 1, 2  # kinds of rows, in `info["kind"]`
IGNORED = -100
CERTAIN = 30.0  # logit of a token that a predictor is sure of
METRICS = {
    "accuracy": Metric(title="accuracy"),
    "token_accuracy": Metric(title="accuracy per token"),
    "loss": Metric(title="cross-entropy", higher_is_better=False),
    "bits_per_byte": Metric(title="bits per byte", higher_is_better=False),
}


def cross_entropy(predictions: Float[Tensor, "b t vocabulary"], batch: Batch) -> Float[Tensor, ""]:
    """The mean cross-entropy of the scored tokens, in nats."""
    labels = batch.targets.masked_fill(~batch.info["scored"], IGNORED)
    return functional.cross_entropy(predictions.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def loss_per_token(predictions: Float[Tensor, "b t vocabulary"], batch: Batch) -> Float[Tensor, "b t"]:
    """The cross-entropy of each token in nats; 0 where it is not scored."""
    losses = functional.cross_entropy(predictions.mT, batch.targets, reduction="none")
    return losses.masked_fill(~batch.info["scored"], 0.0)


def measure(predictions: Float[Tensor, "b t vocabulary"], batch: Batch) -> dict[str, Ratio]:
    """The metrics of rows of one kind. A sentence of the grammar is right if all tokens of its answer are."""
    scored = batch.info["scored"]
    count = scored.sum(dim=1).double()
    loss = loss_per_token(predictions, batch).double().sum(dim=1)
    right = (predictions.argmax(dim=-1) == batch.targets) & scored
    tokens = Ratio(right.sum(dim=1).double(), count)
    if (batch.info["kind"] == GRAMMAR).all():
        whole = (right | ~scored).all(dim=1).double()
        return {
            "accuracy": Ratio(whole, torch.ones_like(whole)),
            "token_accuracy": tokens,
            "loss": Ratio(loss, count),
        }
    if (batch.info["kind"] == RECALL).all():
        return {"accuracy": tokens, "loss": Ratio(loss, count)}
    num_bytes = batch.info["num_bytes"].masked_fill(~scored, 0).sum(dim=1).double()
    return {
        "bits_per_byte": Ratio(loss / math.log(2), num_bytes),
        "loss": Ratio(loss, count),
        "accuracy": tokens,
    }


def predict_targets(batch: Batch, vocabulary: int) -> Float[Tensor, "b t vocabulary"]:
    """Logits that are certain of the targets."""
    zeros = torch.zeros(*batch.targets.shape, vocabulary, dtype=torch.float32, device=batch.targets.device)
    return zeros.scatter_(-1, batch.targets[..., None], CERTAIN)


def tabulate(predict: Callable[[Tensor], Tensor], batches: Iterable[Batch], length: int) -> Table:
    """Cross-entropy, perplexity and number of tokens of each group of positions, then of all."""
    total, count = (torch.zeros(length, dtype=torch.float64) for _ in range(2))
    with torch.inference_mode():
        for batch in batches:
            total += loss_per_token(predict(batch.inputs).float(), batch).double().sum(dim=0).cpu()
            count += batch.info["scored"].double().sum(dim=0).cpu()
    starts = [0, *(2**power for power in range(length.bit_length()) if 2**power < length)]
    groups = [*zip(starts, [*starts[1:], length], strict=True), (0, length)]
    rows = []
    for first, last in groups:
        num_tokens = count[first:last].sum().item()
        if num_tokens:
            loss = total[first:last].sum().item() / num_tokens
            rows.append((f"{first + 1} to {last}", loss, math.exp(loss), int(num_tokens)))
    return Table(
        title="Held-out text by position",
        columns=("positions", "cross-entropy", "perplexity", "tokens"),
        rows=tuple(rows),
    )
