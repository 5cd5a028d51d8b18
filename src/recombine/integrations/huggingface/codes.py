"""The latent codes of any pretrained model: `codes(model, inputs)`.

For chosen pairs of a query and a key, it returns the code (one number per head) of every layer, and the residual stream at
the query. The codes of other pairs are never stored: the model itself runs through a fused kernel, and only the chosen rows
of the scores are computed again.

    collected = codes(model, tokenizer(texts, padding=True, return_tensors="pt"))
    collected.write("codes.npz", labels=labels, split=split)       # recombine probe --activations codes.npz
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from recombine.attention.definition import normalise, score
from recombine.attention.dispatch import attend
from recombine.foundation.errors import InputError, check_positive
from recombine.foundation.files import write_output
from recombine.integrations.huggingface.attention import Call, watching
from recombine.training.score import evaluating

LAST_TOKEN = ((-1, -1),)


@dataclass(frozen=True, kw_only=True)
class Codes:
    """Codes and residual stream by site: `codes.LAYER` (rows, pairs, heads) and `residual.LAYER` (rows, pairs, width)."""

    arrays: Mapping[str, np.ndarray]
    pairs: Int[np.ndarray, "rows pairs 2"]  # positions of query and key, from the start

    def write(self, path: Path | str, **columns: Any) -> None:
        """Write an npz file that `recombine probe --activations` reads; `columns` are its labels, split and so on."""
        content = io.BytesIO()
        flat = {f"activations.{site}": values.reshape(len(values), -1) for site, values in self.arrays.items()}
        np.savez(content, allow_pickle=False, **flat, **columns)
        write_output(Path(path), content.getvalue())


def codes(
    model: nn.Module,
    inputs: Mapping[str, Tensor] | Tensor,
    pairs: Sequence[tuple[int, int]] | Int[Tensor, "rows pairs 2"] = LAST_TOKEN,
    *,
    batch_size: int = 16,
) -> Codes:
    """Codes and residual stream of a `transformers` model.

    `inputs` is what a tokenizer returns, or token numbers (rows, tokens). `pairs` are (query, key) positions, for all rows
    or for each; negative ones count from the end of the row without its padding. The residual stream of layer i is the
    model's own hidden state behind its block i (of the last block, after the final norm where the model has one).
    """
    check_positive(batch_size=batch_size)
    inputs = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    attention_mask = inputs.get("attention_mask")
    if attention_mask is None:
        attention_mask = torch.ones_like(inputs["input_ids"])
    chosen = resolve_pairs(pairs, attention_mask)
    batches = [
        collect_pairs(model, {name: value[rows] for name, value in inputs.items()}, chosen[rows])
        for rows in torch.arange(len(chosen)).split(batch_size)
    ]
    arrays = {site: torch.cat([batch[site] for batch in batches]).numpy() for site in batches[0]}
    return Codes(arrays=arrays, pairs=chosen.numpy())


def collect_pairs(
    model: nn.Module, inputs: Mapping[str, Tensor], pairs: Int[Tensor, "rows pairs 2"]
) -> dict[str, Tensor]:
    """Codes (rows, pairs, heads) and residual stream (rows, pairs, width) of one batch, on the CPU."""
    device = next(model.parameters()).device
    pairs = pairs.to(device)
    codes: list[Tensor] = []

    def handle(call: Call) -> Tensor:
        codes.append(read_codes(call, pairs))
        return attend(call.q, call.k, call.v, return_codes=False, **call.options)[0]

    with evaluating(model), watching(model, handle):
        outputs = model(**{name: value.to(device) for name, value in inputs.items()}, output_hidden_states=True)
    if not codes:
        raise InputError(f"{type(model).__name__} called no attention: expected a transformer")
    sites = {f"codes.{layer}": values for layer, values in enumerate(codes)}
    for layer, state in enumerate(outputs.hidden_states[1:]):
        sites[f"residual.{layer}"] = take_tokens(state, pairs[..., 0])
    return {name: values.float().cpu() for name, values in sites.items()}


def read_codes(call: Call, pairs: Int[Tensor, "rows pairs 2"]) -> Tensor:
    """The codes of these pairs, (rows, pairs, heads), from the scores of their queries alone."""
    queries, keys = pairs[..., 0], pairs[..., 1]
    scores = score(take_tokens(call.q, queries), call.k, _take_queries(call.options["bias"], call, queries))
    mask = _take_queries(call.options["mask"], call, queries)
    if call.options["causal"]:
        earlier = torch.arange(call.k.shape[1], device=keys.device) <= queries[..., None]
        mask = earlier[:, None] if mask is None else mask & earlier[:, None]
    rows = normalise(scores, call.options["normalisation"], mask)  # (b, h, pairs, k)
    index = keys[:, None, :, None].expand(-1, rows.shape[1], -1, 1)
    return rows.gather(3, index)[..., 0].transpose(1, 2)


def take_tokens(x: Tensor, positions: Int[Tensor, "rows pairs"]) -> Tensor:
    """The tokens (rows, pairs, ...) at these positions of (rows, tokens, ...)."""
    return x[torch.arange(len(x), device=x.device)[:, None], positions]


def _take_queries(pairwise: Tensor | None, call: Call, queries: Tensor) -> Tensor | None:
    """Rows of a bias or mask that broadcasts to (b, h, q, k): (b, h or 1, pairs, k)."""
    if pairwise is None:
        return None
    pairwise = pairwise[(None,) * (4 - pairwise.dim())]
    full = pairwise.expand(len(call.q), -1, call.q.shape[1], call.k.shape[1])
    return take_tokens(full.transpose(1, 2), queries).transpose(1, 2)


def resolve_pairs(
    pairs: Sequence[tuple[int, int]] | Tensor, attention_mask: Int[Tensor, "rows tokens"]
) -> Int[Tensor, "rows pairs 2"]:
    """Positions from the start of each row; negative ones count from its last token that is not padding."""
    chosen = torch.as_tensor(pairs).cpu()
    if chosen.dim() == 2:
        chosen = chosen.expand(len(attention_mask), -1, -1)
    if chosen.dim() != 3 or chosen.shape[2] != 2 or len(chosen) != len(attention_mask) or chosen.is_floating_point():
        raise InputError(
            f"pairs have shape {tuple(chosen.shape)}: expected (pairs, 2) or ({len(attention_mask)}, pairs, 2) positions"
        )
    num_tokens = attention_mask.shape[1]
    present = attention_mask.cpu().bool()
    end = num_tokens - present.flip(1).int().argmax(dim=1)
    resolved = torch.where(chosen < 0, chosen + end[:, None, None], chosen)
    inside = (resolved >= 0) & (resolved < num_tokens)
    seen = present.gather(1, resolved.clamp(0, num_tokens - 1).flatten(1)).view_as(resolved)
    if not (inside & seen).all():
        row, pair, _ = torch.nonzero(~(inside & seen))[0].tolist()
        raise InputError(
            f"pair {tuple(chosen[row, pair].tolist())} of row {row} is not a pair of its {int(present[row].sum())} tokens: "
            "expected positions of tokens that are not padding"
        )
    return resolved
