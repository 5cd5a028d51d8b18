"""The loss on held-out text by position: how much a model gains from what it has read.

Windows start at the beginning of a document or in its middle, so the first positions have little context. Positions are
grouped by powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from recombine.tables import Table
from recombine.tasks.batch import Batch
from recombine.tasks.language.scoring import loss_per_token


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
