"""The files that probes write have exactly the keys that are documented, and every documented key is written somewhere."""

from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from recombine.foundation.errors import find_schema_error
from recombine.inside.probe import probe_run
from recombine.inside.result import ProbeNumbers, SiteDecoder
from recombine.models.hypernetwork import HypernetworkTransformerConfig
from recombine.models.sequence import DeepSetConfig
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run

SIZES: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 16, "num_heads": 2, "num_layers": 1}
IN_CONTEXT = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
BOTTLENECK = HypernetworkTransformerConfig(**SIZES, attention="softmax", execution_dim=8)
TEACHER = SequenceTeacher(teacher="deep_set", token_dim=3, teacher_dim=4, target_dim=4, longest=20)
RUNS = {
    "fuzzy_logic": (FuzzyLogic(num_examples=4), TransformerConfig(**SIZES)),
    "sraven": (SRaven(num_features=2), TransformerConfig(**SIZES)),
    "sequence_teacher": (TEACHER, DeepSetConfig(hidden_dim=4)),
}


def find_differences(value, declared):
    """Keys that are missing, not declared or of another type."""
    fault = find_schema_error(value, declared)
    return ([] if fault is None else [fault]) + list(find_undeclared(value, declared))


def find_undeclared(value, declared):
    if is_typeddict(declared):
        hints = get_type_hints(declared, include_extras=True)
        yield from value.keys() - hints.keys()
        for key in value.keys() & hints.keys():
            yield from find_undeclared(value[key], hints[key])
    elif get_origin(declared) is NotRequired:
        yield from find_undeclared(value, get_args(declared)[0])
    elif get_origin(declared) in (list, dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from find_undeclared(item, get_args(declared)[-1])


def train(task, model, folder):
    config = RunConfig(task=task, model=model, training=TrainingConfig(steps=5, batch_size=4, warmup_steps=1))
    return train_run(config, out=folder, device="cpu", evaluation_instances=20)


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    """A probe.json of each task, as the file has it."""
    folder, files = tmp_path_factory.mktemp("runs"), {}
    for name, (task, model) in RUNS.items():
        run = train(task, model, folder)
        probe_run(run.path, num_instances=60, num_pictured=24, tsne=name != "sraven")
        files[name] = run.read_json("probe.json")
    return files


@pytest.mark.parametrize("name", RUNS)
def test_probe_json_has_the_declared_keys(probes, name):
    variants = {key: value for key, value in probes[name].items() if key.startswith("decoders_")}
    rest = {key: value for key, value in probes[name].items() if key not in variants}
    described = {f"decoders_{key}": rest["reading"].pop(key) for key in RUNS[name][0].reading().variants}
    assert find_differences(rest, ProbeNumbers) == []
    assert set(variants) == set(described)
    assert all(find_differences(decoders, dict[str, SiteDecoder]) == [] for decoders in variants.values())


def test_every_declared_key_is_written_by_some_probe(probes):
    written = {key for probe in probes.values() for key in list_keys(probe)}
    assert list_declared(ProbeNumbers) - written == set()


def list_keys(value):
    if isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from list_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_keys(item)


def list_declared(declared):
    if is_typeddict(declared):
        hints = get_type_hints(declared, include_extras=True)
        return set(hints) | {key for hint in hints.values() for key in list_declared(hint)}
    return {key for part in get_args(declared) for key in list_declared(part)} if get_origin(declared) else set()
