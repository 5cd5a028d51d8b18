"""Generate tokens with a language model, one at a time.

With a cache, each step computes one token; without one, the whole sequence again. Both give the same logits up to rounding.
Random numbers are a pure function of the seed and the number of the token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.errors import InputError, check_positive, require
from recombine.models.language_model import LanguageModel
from recombine.tasks.stream import Stream


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Tokens that follow a prompt, up to `num_tokens` or until `stop`; with temperature 0 always the most likely one.

    Of the tokens, the most likely ones with a total probability of `top_p` are drawn from.
    """
    check_positive(num_tokens=num_tokens)
    require(temperature >= 0, "temperature", temperature, "0 or a positive number")
    require(0 < top_p <= 1, "top_p", top_p, "a number above 0, at most 1")
    if not prompt:
        raise InputError("the prompt is empty: expected at least one token")
    return _generate(model, list(prompt), num_tokens, temperature, top_p, seed, stop, use_cache)


def _generate(
    model: LanguageModel,
    tokens: list[int],
    num_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    stop: int | None,
    use_cache: bool,
) -> Iterator[int]:
    device = model.embedding.weight.device
    cache = model.start() if use_cache else None
    seen = 0
    for number in range(num_tokens):
        with torch.inference_mode():
            new = torch.tensor([tokens[seen:] if use_cache else tokens], device=device)
            logits = model(new, cache=cache, num_read=1)[0, -1].float().cpu()
        seen = len(tokens)
        draw = Stream("generate", seed, number, rows=range(1)).uniform(1).item()
        token = choose_token(logits, draw, temperature=temperature, top_p=top_p)
        yield token
        if token == stop:
            return
        tokens.append(token)


def choose_token(logits: Float[Tensor, " tokens"], draw: float, *, temperature: float, top_p: float) -> int:
    """The token at a place between 0 and 1 in the distribution; the most likely tokens come first."""
    if temperature == 0:
        return int(logits.argmax())
    probabilities, order = (logits.double() / temperature).softmax(dim=0).sort(descending=True, stable=True)
    total = probabilities.cumsum(dim=0)
    num_kept = int((total - probabilities < top_p).sum())
    index = int(torch.searchsorted(total[:num_kept], draw * total[num_kept - 1], right=True))
    return int(order[min(index, num_kept - 1)])
