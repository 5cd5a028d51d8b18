"""Students that are constructed, not trained: what training on outputs can and cannot determine
(On Provable Length and Compositional Generalization, arXiv 2402.04875).

- `change_basis`: h' = A h for an invertible A. For deep set, attention and SSM there is a student with such hidden states
  and the same outputs at every length, φ' = A φ, V' = A V, or Λ' = A Λ A⁻¹ and B' = A B, each with ρ'(h) = ρ(A⁻¹ h). Hidden
  states can therefore be identified only up to a linear map. For an RNN these weights give the same outputs only if A
  commutes with the sigmoid, that is, for permutations. The changed attention and SSM are of the teacher's class; the changed
  deep set is not quite, because φ' ends with a linear layer and not with a sigmoid.
- `forget_beyond`: a deep set whose readout first clips sums at T. Features lie in (0, 1), so no sum of T tokens is ever
  clipped: the student has no error up to length T, whatever the data, but fails on longer sequences. min(h, T) =
  T - relu(T - h) is one more layer of the readout, so higher capacity is sufficient. (This is a ReLU layer; the MLP readouts
  that `length-capacity` trains have sigmoids, which can approximate it but not equal it.)
"""

from __future__ import annotations

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import InputError, check_positive
from recombine.models.causal_attention import CausalAttention
from recombine.models.deep_set import DeepSet
from recombine.models.recurrent import RecurrentNetwork, StateSpaceModel
from recombine.models.sequence_model import SequenceModel


class Clip(nn.Module):
    """min(h, limit), unit by unit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, h: Float[Tensor, "*b hidden"]) -> Float[Tensor, "*b hidden"]:
        return h.clamp(max=self.limit)


@torch.no_grad()
def change_basis(model: SequenceModel, basis: Float[Tensor, "hidden hidden"]) -> SequenceModel:
    """The model with its hidden states in another basis; a deep set gets one more linear layer for it."""
    size = model.config.hidden_dim
    if tuple(basis.shape) != (size, size):
        raise InputError(f"the basis has shape {tuple(basis.shape)}: expected {(size, size)}, for the hidden states")
    changed = deepcopy(model)
    inverse = torch.linalg.inv(basis)
    first = next(layer for layer in changed.readout if isinstance(layer, nn.Linear))
    first.weight.copy_(first.weight @ inverse)
    if isinstance(changed, DeepSet):
        linear = nn.Linear(size, size, bias=False, dtype=basis.dtype, device=basis.device)
        linear.weight.copy_(basis)
        changed.embed.add_module("basis", linear)
    elif isinstance(changed, CausalAttention):
        changed.value.copy_(basis @ changed.value)
    elif isinstance(changed, RecurrentNetwork | StateSpaceModel) and changed.recurrence is not None:
        changed.recurrence.copy_(basis @ changed.recurrence @ inverse)
        changed.input.copy_(basis @ changed.input)
    else:
        raise InputError(f"{type(model).__name__} has no recurrent matrix to change: expected a dense recurrence")
    return changed


def forget_beyond(model: DeepSet, length: int) -> DeepSet:
    """A deep set that equals the given one on sequences up to this length, and differs on longer ones."""
    check_positive(length=length)
    if not isinstance(model, DeepSet):
        raise InputError(f"the model is a {type(model).__name__}: expected a deep set, whose features are bounded")
    changed = deepcopy(model)
    changed.readout = nn.Sequential(Clip(float(length)), *model.readout)
    return changed
