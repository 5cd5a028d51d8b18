"""A pretrained model, called as our own models are: predictions, latent codes, and changes of the codes.

Each prompt names the pair of tokens that a probe reads. Codes (b, h, q, k) are turned so that this query is the last query
and this key the last key, whatever the length of the prompt; the other tokens keep their order around them. After a change,
pairs that the model cannot see are 0 again.

What is predicted is the class of a prompt (see `huggingface_task`): from the logits of the first token of each answer, or, if
prompts have no answers, from the last hidden state of the query by a linear decoder of the labels that is fitted on the
`train` prompts. So ablations and swaps tell what the codes do to that state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.integrations.huggingface_codes import take_tokens
from recombine.integrations.huggingface_task import Prompts
from recombine.integrations.huggingface_watch import CodeRecorder, watching
from recombine.kernels import CodeMap
from recombine.models.base import Site
from recombine.probe.collect import evaluating
from recombine.probe.decode import standardise
from recombine.probe.linear import fit_logistic

STRENGTH = 0.1  # of the decoder's regularisation; the middle one of those that the probe tries
CHUNK_SIZE = 250


class PretrainedModel(nn.Module):
    """A `transformers` model on prompts."""

    def __init__(self, model: nn.Module, task: Prompts) -> None:
        super().__init__()
        self.model = model
        num_layers = int(model.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
        # what probes record: the residual stream at the query, behind each block
        self.residual = nn.ModuleList([nn.Identity() for _ in range(num_layers)])
        self.probe_sites = tuple(Site(f"residual.{layer}", f"residual.{layer}") for layer in range(num_layers))
        self.readout: nn.Linear | None = None
        self.answers: Tensor | None = find_answers(task) if task.file.has_answers else None

    def forward(
        self,
        inputs: Int[Tensor, "b columns"],
        *,
        return_codes: bool = False,
        code_maps: Sequence[CodeMap | None] | None = None,
    ) -> Tensor | tuple[Tensor, list[Float[Tensor, "b h q k"]]]:
        """Scores of the classes (b, classes), and with `return_codes` the codes of each layer."""
        pairs, tokens = inputs[:, :2], inputs[:, 2:]
        turn = _Turn(pairs, tokens.shape[1])
        call: dict[str, Any] = {"input_ids": tokens.clamp(min=0), "attention_mask": (tokens >= 0).long()}
        if not return_codes and code_maps is None:
            return self._predict(self.model(**call, output_hidden_states=True), pairs)
        maps = (
            None if code_maps is None else [None if code_map is None else turn.wrap(code_map) for code_map in code_maps]
        )
        recorder = CodeRecorder(maps)
        with watching(self.model, recorder):
            outputs = self.model(**call, output_hidden_states=True)
        predictions = self._predict(outputs, pairs)
        return (predictions, [turn.forward(codes) for codes in recorder.codes]) if return_codes else predictions

    def _predict(self, outputs: Any, pairs: Int[Tensor, "b 2"]) -> Float[Tensor, "b classes"]:
        query = pairs[:, :1]
        states = [take_tokens(state, query)[:, 0] for state in outputs.hidden_states[1:]]
        for site, state in zip(self.residual, states, strict=True):
            site(state)
        if self.answers is not None:
            return take_tokens(outputs.logits, query)[:, 0, self.answers.to(query.device)]
        return states[-1] if self.readout is None else self.readout(states[-1])

    def fit_readout(self, task: Prompts, device: torch.device | str = "cpu") -> None:
        """Fit the decoder of the labels, and add up its scores over the labels of each composition."""
        if self.answers is not None:
            return
        batch = task.take("train", list(range(len(task.rows["train"]))), device)
        with evaluating(self):
            states = torch.cat([self(chunk) for chunk in batch.inputs.split(CHUNK_SIZE)]).float().cpu().numpy()
        labels = task.reading().label(batch).cpu().numpy()
        x = standardise(states, np.arange(len(states)))
        weights = fit_logistic(x, labels, strength=STRENGTH)
        deviation = states.std(axis=0)
        scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
        slope = weights[:-1] * scale[:, None]
        bias = weights[-1] - states.mean(axis=0) @ slope
        modules = {module: column for column, module in enumerate(task.reading().modules)}
        members = np.zeros((len(modules), task.output_dim))
        for number, composition in enumerate(task.split.train + task.split.ood):
            for module in composition:
                members[modules[module], number] = 1
        readout = nn.Linear(states.shape[1], task.output_dim)
        with torch.no_grad():
            readout.weight.copy_(torch.tensor((slope @ members).T))
            readout.bias.copy_(torch.tensor(bias @ members))
        self.readout = readout.to(device)


class _Turn:
    """Turns codes so that the pair of each row comes last, and back."""

    def __init__(self, pairs: Int[Tensor, "b 2"], num_tokens: int) -> None:
        places = torch.arange(num_tokens, device=pairs.device)
        shift = pairs[:, :, None] + 1
        self.to_end = (places + shift) % num_tokens  # (b, 2, tokens)
        self.back = (places - shift) % num_tokens

    def forward(self, codes: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
        return _reorder(codes, self.to_end)

    def wrap(self, code_map: CodeMap) -> CodeMap:
        """A change of turned codes as one of the model's own."""

        def change(codes: Tensor) -> Tensor:
            changed = _reorder(code_map(_reorder(codes, self.to_end)), self.back)
            # a pair that is masked has code 0, and no other has exactly that
            return changed.masked_fill(codes == 0, 0)

        return change


def _reorder(codes: Float[Tensor, "b h q k"], order: Int[Tensor, "b 2 tokens"]) -> Float[Tensor, "b h q k"]:
    codes = codes.gather(2, order[:, 0, None, :, None].expand_as(codes))
    return codes.gather(3, order[:, 1, None, None, :].expand_as(codes))


def find_answers(task: Prompts) -> Int[Tensor, " classes"]:
    """The first token of each answer; raises if two answers begin alike."""
    tokens = {answer: task.tokenizer(answer, add_special_tokens=False)["input_ids"][:1] for answer in task.classes}
    for answer, first in tokens.items():
        if not first:
            raise InputError(f"answer {answer!r} has no tokens: expected answers that the tokenizer knows")
        alike = [other for other in tokens if other != answer and tokens[other] == first]
        if alike:
            raise InputError(
                f"answers {answer!r} and {alike[0]!r} begin with the same token: expected answers that "
                "differ in their first token"
            )
    return torch.tensor([first[0] for first in tokens.values()])
