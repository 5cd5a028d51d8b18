"""What the paper proves, as constructions: what outputs determine, and why capacity must be limited.

docs/theory.md derives them. Students are copies of random teachers, so nothing is trained.

Linear identification. With a readout of one layer, y = σ(W h + b), the logarithms of the odds of y are linear in h. A student
whose hidden states are those of the teacher in another basis therefore finds its readout by least squares. If the hidden
states of the training sequences span the space, this readout is the only solution, and it is right at every length. If they
do not, other solutions fit the training sequences as well.

Students that are constructed, not trained: what training on outputs can and cannot determine
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

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.foundation import InputError, check_positive, show_setting
from recombine.models import CausalAttention, DeepSet, RecurrentNetwork, SequenceModel, StateSpaceModel, build_model
from recombine.tasks import SequenceTeacher
from recombine.training import default_run
from recombine_papers.claims import Computes, log10_of
from recombine_papers.experiment import Calculation
from recombine_papers.length.runs import ABSTRACT, PAPER


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
    changed.readout = nn.Sequential(nn.Hardtanh(0.0, float(length)), *model.readout)  # sums of features are positive
    return changed


TRAINED, LONG = 10, 100  # tokens
NUM_SEQUENCES = 200
DIVERSE, SINGLE = NUM_SEQUENCES, 1  # training sequences, labelled at every token
EXACT, CHANGED = -9.0, -3.0  # log10 of a change of outputs that is rounding, and of one that is not
IDENTIFICATION = f"{PAPER}, equation 11"
CAPACITY = f"{PAPER}, text: with too much capacity, solutions exist that fit and fail"
CLASSES = ("deep_set", "attention", "ssm")


def claim_per_class(
    quantity: str,
    text: str,
    source: str,
    *,
    classes: Iterable[str] = (*CLASSES, "rnn"),
    low: float = -math.inf,
    high: float = math.inf,
) -> list[Computes]:
    """The same claim about the quantity of each class of networks."""
    return [
        Computes(
            text=text,
            where=show_setting(name),
            source=source,
            quantity=f"{quantity}_{name}",
            low=low,
            high=high,
            per_seed=True,
        )
        for name in classes
    ]


class SequenceTheory(Calculation):
    """Students whose hidden states are in another basis, the readouts they find, and one that forgets sums beyond ten."""

    name = "length-theory"
    question = "What do outputs say about hidden states, and what can a student of higher capacity do?"
    known_before = (
        "all numbers: docs/theory.md had them. The error at 100 tokens replaced its ratio to a constant, which is seen in "
        "part only: it grows without limit where a teacher's outputs hardly vary. Verdicts count seeds since then."
    )
    claims = (
        *claim_per_class(
            "identified",
            "diverse sequences of 10 tokens determine the outputs at 100 (log10 of the largest difference)",
            f"{ABSTRACT}; {IDENTIFICATION.partition(', ')[2]}",
            high=EXACT,
        ),
        *claim_per_class(
            "undetermined",
            "a single sequence of 10 tokens does not determine them (log10 of the largest difference)",
            f"{ABSTRACT}: the data must be diverse",
            low=CHANGED,
        ),
        *claim_per_class(
            "rotation",
            "outputs do not determine the basis of hidden states (log10 of the change by a random rotation)",
            IDENTIFICATION,
            classes=CLASSES,
            high=EXACT,
        ),
        Computes(
            text="hidden units of an RNN can be permuted (log10 of the change of outputs)",
            source="our construction",
            ours=True,
            quantity="permutation_rnn",
            high=EXACT,
            per_seed=True,
        ),
        Computes(
            text="a random rotation of an RNN's hidden states changes its outputs (log10 of the change)",
            source="our construction",
            ours=True,
            quantity="rotation_rnn",
            low=CHANGED,
            per_seed=True,
        ),
        Computes(
            text="a student of higher capacity can be right up to 10 tokens (log10 of the largest difference)",
            source=CAPACITY,
            quantity="forgetful_trained",
            exact=True,
            high=EXACT,
        ),
        Computes(
            text="that student is wrong at 100 tokens (log10 of the squared error)",
            source=CAPACITY,
            quantity="forgetful_long",
            low=-3.0,
            per_seed=True,
        ),
    )

    @torch.no_grad()
    def compute(self, seed: int) -> Mapping[str, float]:
        rotation, permutation = draw_bases(seed)
        changes = {f"rotation_{name}": change_outputs(name, rotation, seed) for name in (*CLASSES, "rnn")}
        changes["permutation_rnn"] = change_outputs("rnn", permutation, seed)
        trained, long = forget(seed)
        for name in (*CLASSES, "rnn"):
            basis = permutation if name == "rnn" else rotation
            changes[f"identified_{name}"] = find_readout(name, basis, seed, DIVERSE)
            changes[f"undetermined_{name}"] = find_readout(name, basis, seed, SINGLE)
        return {
            **{name: log10_of(change) for name, change in changes.items()},
            "forgetful_trained": log10_of(trained),
            "forgetful_long": log10_of(long),
        }


def copy_teacher(name: str, seed: int = 0) -> tuple[SequenceTeacher, SequenceModel]:
    """A task, and a student that equals its teacher."""
    task = SequenceTeacher(teacher=name, seed=seed)  # type: ignore[arg-type]
    model = build_model(default_run(SequenceTeacher, "paper", name).model, task, seed=0)
    assert isinstance(model, SequenceModel)
    model.load_state_dict(task.weights)
    return task, model.double()


def draw_bases(seed: int, size: int = 20) -> tuple[Float[Tensor, "size size"], Float[Tensor, "size size"]]:
    """A random rotation and a random permutation of the hidden units."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    return rotation, torch.eye(size, dtype=torch.float64)[torch.randperm(size, generator=generator)]


def change_outputs(name: str, basis: Float[Tensor, "size size"], seed: int) -> float:
    """The largest change of the outputs, at any of 100 tokens, when hidden states are in another basis."""
    task, model = copy_teacher(name, seed)
    x = task.sample_length("ood", 0, LONG, batch_size=NUM_SEQUENCES).inputs.double()
    return float((change_basis(model, basis)(x) - model(x)).abs().max())


def forget(seed: int) -> tuple[float, float]:
    """Of a deep set that clips sums at ten: the largest difference up to 10 tokens, and the squared error at 100."""
    task, model = copy_teacher("deep_set", seed)
    assert isinstance(model, DeepSet)
    x = task.sample_length("ood", 0, LONG, batch_size=NUM_SEQUENCES).inputs.double()
    difference = forget_beyond(model, TRAINED)(x) - model(x)
    return float(difference[:, :TRAINED].abs().max()), float(difference[:, -1].square().mean())


def find_readout(name: str, basis: Float[Tensor, "size size"], seed: int, num_sequences: int) -> float:
    """The largest difference from the teacher at 100 tokens, of a student that finds its readout on sequences of 10."""
    task, teacher = copy_teacher(name, seed)
    student = change_basis(teacher, basis)
    short = task.sample_length("test", 0, TRAINED, batch_size=num_sequences).inputs.double()
    long = task.sample_length("ood", 0, LONG, batch_size=NUM_SEQUENCES).inputs.double()
    readout = fit_readout(student.represent(short).flatten(0, 1), teacher(short).flatten(0, 1))
    outputs = torch.sigmoid(append_one(student.represent(long)[:, -1]) @ readout)
    return float((outputs - teacher(long)[:, -1]).abs().max())


def fit_readout(
    hidden: Float[Tensor, "rows size"], outputs: Float[Tensor, "rows targets"]
) -> Float[Tensor, "size+1 targets"]:
    """Weights and bias by least squares on the logarithms of the odds; the smallest solution where there are several.

    Rows have the weight y (1 - y), because the odds of saturated outputs are mostly rounding.
    """
    weights = outputs * (1 - outputs)
    odds = torch.where(weights > 0, torch.logit(outputs), 0.0)
    rows = weights.T[..., None] * append_one(hidden)
    solution = torch.linalg.lstsq(rows, (weights * odds).T[..., None], driver="gelsd").solution
    return solution[..., 0].T


def append_one(hidden: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size+1"]:
    """Hidden states with a feature that is always 1, for the bias."""
    return torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
