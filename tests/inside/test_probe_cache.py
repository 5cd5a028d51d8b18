"""Kept measurements: used again only if arguments, versions and checkpoint are the same.

What is measured is planted here, so that the tests take little time and count how often it is measured.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from recombine.foundation.errors import InputError
from recombine.inside import probe as probe_runs
from recombine.inside.probe import is_probed, probe_run
from recombine.inside.result import ProbeResult
from recombine.inside.verdict import diagnose_run
from recombine.models.hypernetwork import HypernetworkTransformerConfig
from recombine.models.sequence import DeepSetConfig
from recombine.models.transformer import TransformerConfig
from recombine.report.findings import read_probe as read_reported_probe
from recombine.report.runs import ReportRun
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run
from recombine_papers.in_context import measures as fitted_code
from recombine_papers.length import identification
from recombine_papers.scale import decodability

SIZES: dict[str, Any] = {
    "attention": "softmax",
    "embedding_dim": 8,
    "kqv_dim": 8,
    "mlp_dim": 8,
    "num_heads": 2,
    "num_layers": 1,
}
CONFIG = RunConfig(
    task=InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2),
    model=HypernetworkTransformerConfig(**SIZES, execution_dim=8),
    training=TrainingConfig(steps=100, batch_size=4, warmup_steps=5),
)
TEACHER = SequenceTeacher(teacher="deep_set", token_dim=3, teacher_dim=4, target_dim=4, longest=20)
STUDENT = replace(CONFIG, task=TEACHER, model=DeepSetConfig(hidden_dim=4))
PROBED = replace(CONFIG, task=FuzzyLogic(num_examples=4), model=TransformerConfig(**SIZES))
SHORT = TrainingConfig(steps=10, batch_size=4)
SCORES = {"f1": 0.5, "majority": {"f1": 0.25}, "control": {}, "selectivity": {}}


class KilledError(Exception):
    pass


def train(config, folder, *, until=None):
    """Train a run, or kill it behind a step; called again, it is resumed."""

    def watch(progress):
        if until is not None and progress.step > until:
            raise KilledError

    return train_run(config, out=folder, device="cpu", evaluation_instances=20, watch=watch)


def plant_probe(model, task, *, num_instances, **arguments):
    numbers: Any = {
        "version": 2,
        "num_instances": num_instances,
        "modules": [],
        "num_compositions": {"fit": 0, "id": 0, "ood": 0},
        "sites": [],
        "skipped": {},
        "seconds": {},
        "tsne_share": 0.0,
    }
    decoder: Any = {"num_features": 2, "strength": {}, "modules": {}, "cross_validated": {"f1": 0.5}}
    decoder |= {"id": SCORES, "ood": SCORES}
    numbers |= {"best_site": "codes.0", "decoders": {"codes.0": decoder}}
    return ProbeResult(numbers=numbers, arrays={"labels": np.zeros((num_instances, 2))})


def plant_decoders(model, task, *, num_instances):
    return {"hidden.0": {"cross_validated": {}, "id": {"r2": 0.5}, "ood": {"r2": 0.25}}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A measurement of a run, the slow part of it with what is planted instead, and arguments to ask with."""

    config: RunConfig
    measure: Callable[..., Any]
    module: Any
    constant: str
    slow_part: str
    planted: Callable[..., Any]
    first: dict[str, Any]
    second: dict[str, Any]


PROBE_ARGUMENTS: dict[str, Any] = {"num_instances": 60, "num_pictured": 20, "tsne": False}
CASES = {
    "decodability": Case(
        config=CONFIG,
        measure=decodability.measure_decodability,
        module=decodability,
        constant="DECODABILITY",
        slow_part="decode_sites",
        planted=plant_decoders,
        first={"num_instances": 40},
        second={"num_instances": 60},
    ),
    "fitted_code": Case(
        config=CONFIG,
        measure=fitted_code.measure_fitted_code,
        module=fitted_code,
        constant="FITTED_CODE",
        slow_part="score_codes",
        planted=lambda model, task, split, num_instances: (0.5, 0.75),
        first={"num_instances": 10},
        second={"num_instances": 12},
    ),
    "identification": Case(
        config=STUDENT,
        measure=identification.identify_run,
        module=identification,
        constant="IDENTIFICATION",
        slow_part="identify",
        planted=lambda model, task, *, num_sequences: identification.Identification(
            loss=[0.5], constant_loss=[1.0], r2={"transfer": [0.5]}
        ),
        first={"num_sequences": 20},
        second={"num_sequences": 30},
    ),
    "probe": Case(
        config=PROBED,
        measure=probe_run,
        module=probe_runs,
        constant="PROBE",
        slow_part="probe_model",
        planted=plant_probe,
        first=PROBE_ARGUMENTS,
        second={**PROBE_ARGUMENTS, "num_instances": 80},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kept_only_while_nothing_has_changed(name, tmp_path, monkeypatch):
    case, calls = CASES[name], []

    def slow_part(*positional, **named):
        calls.append(named)
        return case.planted(*positional, **named)

    monkeypatch.setattr(case.module, case.slow_part, slow_part)
    with pytest.raises(KilledError):
        train(case.config, tmp_path, until=50)
    (path,) = tmp_path.iterdir()
    file = path / f"{name}.json"

    def is_measured(**arguments):
        num_before = len(calls)
        case.measure(path, device="cpu", **arguments)
        return len(calls) > num_before

    def key():
        return json.loads(file.read_text())["key"]

    assert is_measured(**case.first)
    assert not is_measured(**case.first)
    assert is_measured(**case.second)
    assert not is_measured(**case.second)
    assert key()["arguments"] == {**key()["arguments"], **case.second}
    file.write_text('{"key": ')
    assert is_measured(**case.second)
    measurement = getattr(case.module, case.constant)
    with monkeypatch.context() as patch:
        patch.setattr(case.module, case.constant, replace(measurement, version=measurement.version + 1))
        assert is_measured(**case.second)
    assert is_measured(**case.second)
    assert key()["version"] == measurement.version
    kept = json.loads(file.read_text())
    kept["key"]["code"]["task"] = "1-of a file edited since"
    file.write_text(json.dumps(kept))
    assert is_measured(**case.second)
    assert key()["checkpoint"]["step"] == 50
    train(case.config, tmp_path)
    assert is_measured(**case.second)
    assert not is_measured(**case.second)
    assert key()["checkpoint"]["step"] == 100


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(probe_runs, "probe_model", plant_probe)


def test_a_probe_of_an_earlier_step_is_not_read(tmp_path, planted):
    """Neither by `is_probed`, nor by the diagnosis, nor by the report."""
    with pytest.raises(KilledError):
        train(PROBED, tmp_path, until=50)
    (path,) = tmp_path.iterdir()
    probe_run(path, **PROBE_ARGUMENTS)
    run = train(PROBED, tmp_path)
    assert run.path == path
    assert not is_probed(run)
    assert diagnose_run(path).evidence["decodability"] is None
    with pytest.raises(InputError, match=r"probe\.json is of another checkpoint than the run's: expected a new"):
        read_reported_probe(ReportRun(directory=run, label="x", series=0))
    numbers = probe_run(path, **PROBE_ARGUMENTS).numbers
    assert is_probed(run)
    assert diagnose_run(path).evidence["decodability"] is not None
    assert read_reported_probe(ReportRun(directory=run, label="x", series=0)) == numbers


def test_the_two_files_of_a_probe_belong_together(tmp_path, planted):
    run = train(replace(PROBED, training=SHORT), tmp_path)
    numbers = probe_run(run.path, **PROBE_ARGUMENTS).numbers
    assert numbers["key"]["arguments"] == {**PROBE_ARGUMENTS, "save_activations": False}
    first = (run.path / "probe.npz").read_bytes()
    more: dict[str, Any] = {**PROBE_ARGUMENTS, "num_instances": 80}
    probe_run(run.path, **more)
    assert is_probed(run)
    (run.path / "probe.npz").write_bytes(first)  # as after a kill between the two
    assert not is_probed(run)
    probe_run(run.path, **more)
    assert is_probed(run)
    with np.load(run.path / "probe.npz", allow_pickle=False) as arrays:
        assert len(arrays["labels"]) == 80
    (run.path / "probe.npz").unlink()
    assert not is_probed(run)
