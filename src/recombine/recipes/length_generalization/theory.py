"""What the paper proves, as constructions: which hidden states outputs allow, and why capacity must be limited.

docs/theory.md derives them. Students are copies of random teachers, so nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.models import DeepSet, SequenceModel, build_model
from recombine.models.constructed_students import change_basis, forget_beyond
from recombine.recipes.calculation import Calculation, Computes, log10_of
from recombine.run import default_run
from recombine.tables import show_setting
from recombine.tasks import SequenceTeacher

TRAINED, LONG = 10, 100  # tokens
NUM_SEQUENCES = 200
EXACT, CHANGED = -9.0, -3.0  # log10 of a change of outputs that is rounding, and of one that is not
SOURCE = "arXiv 2402.04875"
CLASSES = ("deep_set", "attention", "ssm")


class SequenceTheory(Calculation):
    """Students whose hidden states are in another basis, and one that forgets sums beyond ten."""

    name = "length-theory"
    question = "What do outputs say about hidden states, and what can a student of higher capacity do?"
    known_before = (
        "all numbers: docs/theory.md had them. The error at 100 tokens replaced its ratio to a constant, which is seen in "
        "part only: it grows without limit where a teacher's outputs hardly vary."
    )
    claims = (
        *(
            Computes(
                text="outputs do not determine the basis of hidden states (log10 of the change by a random rotation)",
                where=show_setting(name),
                source=SOURCE,
                quantity=f"rotation_{name}",
                high=EXACT,
            )
            for name in CLASSES
        ),
        Computes(
            text="hidden units of an RNN can be permuted (log10 of the change of outputs)",
            source=SOURCE,
            quantity="permutation_rnn",
            high=EXACT,
        ),
        Computes(
            text="a random rotation of an RNN's hidden states changes its outputs (log10 of the change)",
            source=SOURCE,
            quantity="rotation_rnn",
            low=CHANGED,
        ),
        Computes(
            text="a student of higher capacity can be right up to 10 tokens (log10 of the largest difference)",
            source=SOURCE,
            quantity="forgetful_trained",
            high=EXACT,
        ),
        Computes(
            text="that student is wrong at 100 tokens (log10 of the squared error)",
            source=SOURCE,
            quantity="forgetful_long",
            low=-3.0,
        ),
    )

    @torch.no_grad()
    def compute(self, seed: int) -> Mapping[str, float]:
        rotation, permutation = draw_bases(seed)
        changes = {f"rotation_{name}": change_outputs(name, rotation, seed) for name in (*CLASSES, "rnn")}
        changes["permutation_rnn"] = change_outputs("rnn", permutation, seed)
        trained, long = forget(seed)
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
