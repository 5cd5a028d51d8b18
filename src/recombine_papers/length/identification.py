"""Linear identification: are a student's hidden states the teacher's, up to a linear map, and at which lengths?
(On Provable Length and Compositional Generalization, arXiv 2402.04875.)

A map teacher ≈ A student + b is fitted on all positions of sequences of the longest trained length, and scored at every
position of the longest sequences there are (`transfer`).

R² is pooled over the teacher's units, 1 - Σ error² / Σ (value - mean of the position)², so that drift from position to
position explains nothing. Random features of the tokens can be linearly close to the teacher as well: every number is compared
with that of the same student before training. As all functions are causal, position t of a long sequence is the
last token of a sequence of length t: numbers by position are numbers by length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from recombine.foundation import InputError, check_positive
from recombine.inside import Measurement, decide, fit_ridge
from recombine.models import SequenceModel
from recombine.tasks import Batch, SequenceTeacher, SplitName
from recombine.training import Json, evaluating
from recombine_papers.base import load_networks

IDENTIFICATION = Measurement(name="identification", version=4)
NUM_SEQUENCES = 2_000
RIDGE_STRENGTH = 1e8  # as good as none: it only keeps collinear units solvable
FIRST_BATCH = 10_000  # of the streams, far behind the batches that scores are made of
BATCH_SIZE = 500

Hidden = Float[np.ndarray, "rows t units"]


@dataclass(frozen=True, kw_only=True)
class Identification:
    """By position (1 first): squared error of student and best constant, and R² of the hidden states by kind of map.

    The constant is the mean output of each position of the sequences that are scored, estimated on others of their kind: it
    knows where tokens come from, however narrow the student's training was.
    """

    loss: list[float]
    constant_loss: list[float]
    r2: dict[str, list[float]]


def identify_run(path: Path | str, *, num_sequences: int = NUM_SEQUENCES, device: str = "auto") -> Json:
    """The `Identification` of a run's student, after and before training, stored in `identification.json` of the run."""

    def measure() -> Json:
        config, *students = load_networks(path, device)
        task, found = config.task, []
        for student in students:
            if not isinstance(task, SequenceTeacher) or not isinstance(student, SequenceModel):
                raise InputError(
                    f"{path} has no teacher to compare with: expected a run of a task such as sequence-teacher"
                )
            found.append(asdict(identify(student, task, num_sequences=num_sequences)))
        return {"num_sequences": num_sequences, "trained": found[0], "untrained": found[1]}

    return IDENTIFICATION.load_or_measure(path, {"num_sequences": num_sequences}, measure)


def identify(model: SequenceModel, task: SequenceTeacher, *, num_sequences: int = NUM_SEQUENCES) -> Identification:
    """Compare a student with its teacher, at every length up to the longest."""
    check_positive(num_sequences=num_sequences)
    trained, longest = task.lengths("test")[1], task.lengths("ood")[1]
    fitted_on = _collect(model, task, "test", trained, num_sequences, part=0)
    others = _collect(model, task, "ood", longest, num_sequences, part=1)
    scored_on = _collect(model, task, "ood", longest, num_sequences, part=2)
    student, teacher = scored_on["student"], scored_on["teacher"]
    flat = (fitted_on[name].reshape(-1, fitted_on[name].shape[-1]) for name in ("student", "teacher"))
    weights = fit_ridge(*flat, strength=RIDGE_STRENGTH)
    mapped = decide(student.reshape(-1, student.shape[-1]), weights).reshape(teacher.shape)
    return Identification(
        loss=scored_on["errors"].mean(axis=0).mean(axis=1).tolist(),
        constant_loss=np.square(scored_on["targets"] - others["targets"].mean(axis=0)).mean(axis=(0, 2)).tolist(),
        r2={"transfer": _score(mapped, teacher)},
    )


def _collect(
    model: SequenceModel, task: SequenceTeacher, split: SplitName, length: int, num_sequences: int, *, part: int
) -> dict[str, np.ndarray]:
    """Hidden states and errors, (rows, t, units) in double precision, of sequences that only this part sees."""
    columns: dict[str, list[np.ndarray]] = {}
    device = next(model.parameters()).device
    for number, first in enumerate(range(0, num_sequences, BATCH_SIZE)):
        rows = range(min(BATCH_SIZE, num_sequences - first))
        index = FIRST_BATCH * (part + 1) + number
        batch = task.sample_length(split, index, length, batch_size=BATCH_SIZE, rows=rows, device=device)
        for name, value in _observe(model, task, batch).items():
            columns.setdefault(name, []).append(value.double().cpu().numpy())
    return {name: np.concatenate(values) for name, values in columns.items()}


def _observe(model: SequenceModel, task: SequenceTeacher, batch: Batch) -> dict[str, torch.Tensor]:
    model.check_inputs(batch.inputs)
    with evaluating(model):
        hidden = model.represent(batch.inputs)
        outputs, _ = task.read(model.readout(hidden), batch)
        return {
            "student": hidden,
            "teacher": batch.info["hidden"],
            "targets": batch.targets,
            "errors": (outputs - batch.targets).square(),
        }


def _score(predicted: Hidden, actual: Hidden) -> list[float]:
    """Pooled R² at each position."""
    error = np.square(predicted - actual).sum(axis=(0, 2))
    spread = np.square(actual - actual.mean(axis=0)).sum(axis=(0, 2))
    return (1 - error / np.maximum(spread, 1e-30)).tolist()
