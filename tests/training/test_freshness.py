"""No stale or foreign number: results of another evaluation, damaged checkpoints, other code and other environments."""

import logging

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.mlp import MLPConfig
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training import run as records
from recombine.training import session
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import DamagedError, RunDirectory
from recombine.training.run import train_run
from recombine.training.score import EVALUATION_VERSION
from recombine.training.session import describe_environment, hash_folder

CONFIG = RunConfig(
    task=Hyperteacher(num_modules=4, num_active=2, support="random"),
    model=MLPConfig(num_layers=1, hidden_dim=8),
    training=TrainingConfig(steps=120, batch_size=8),
)


class StoppedError(Exception):
    pass


def train(out, *, stop_at=None, config=CONFIG, instances=100):
    def watch(progress):
        if stop_at is not None and progress.step >= stop_at:
            raise StoppedError

    return train_run(config, out=out, evaluation_instances=instances, watch=watch)


def stop(out, step):
    with pytest.raises(StoppedError):
        train(out, stop_at=step)
    (path,) = out.iterdir()
    return RunDirectory.open(path)


@pytest.fixture
def finished(tmp_path):
    return train(tmp_path)


def test_other_instances_are_evaluated_from_the_checkpoint(finished, caplog):
    before = finished.read_json("result.json")
    assert (before["evaluation_instances"], before["versions"]["evaluation"]) == (100, EVALUATION_VERSION)
    caplog.set_level(logging.WARNING)
    again = train_run(CONFIG, out=finished.path.parent, evaluation_instances=50, watch=lambda _: pytest.fail("trained"))
    after = again.read_json("result.json")
    assert after["evaluation_instances"] == 50
    assert after["scores"] != before["scores"]
    assert after["seconds"] == before["seconds"]
    assert [record.message for record in caplog.records] == [
        f"{finished.path}: evaluating again, on 50 instances per split"
    ]
    assert train(finished.path.parent).read_json("result.json")["scores"] == before["scores"]


def test_another_version_of_the_evaluation_is_evaluated(finished, monkeypatch):
    result = finished.read_json("result.json")
    finished.write_json("result.json", {**result, "scores": {}})
    assert train(finished.path.parent).read_json("result.json")["scores"] == {}  # as it was
    monkeypatch.setattr(records, "EVALUATION_VERSION", EVALUATION_VERSION + 1)
    again = train(finished.path.parent).read_json("result.json")
    assert again["scores"] == result["scores"]
    assert again["versions"]["evaluation"] == EVALUATION_VERSION + 1


def test_scores_of_other_code_under_the_same_version_are_named_and_computed_again(finished, caplog):
    result = finished.read_json("result.json")
    train(finished.path.parent)
    assert caplog.records == []
    finished.write_json("result.json", {**result, "evaluation_source_sha256": "f" * 64, "label": "old"})
    train(finished.path.parent)
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert "other code of the same version computed its scores; --again" in line
    again = train_run(CONFIG, out=finished.path.parent, evaluation_instances=100, again=True).read_json("result.json")
    assert {**again, "seconds": 0} == {**result, "seconds": 0}


def test_another_version_of_a_task_is_another_run(finished, monkeypatch):
    monkeypatch.setattr(Hyperteacher, "version", Hyperteacher.version + 1)
    assert train(finished.path.parent, instances=50).path != finished.path
    with pytest.raises(
        InputError, match=r"made by version \d of task 'hyperteacher': expected version \d; train it again"
    ):
        load_run(finished.path)


def test_a_result_without_a_checkpoint(finished):
    (finished.path / "checkpoint.safetensors").unlink()
    train(finished.path.parent)  # nothing to do
    with pytest.raises(InputError, match="has a result but no checkpoint"):
        train(finished.path.parent, instances=50)


def test_resuming_in_another_environment_is_said_and_both_are_kept(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    run = stop(tmp_path, 50)
    first = run.read_json("environment.json")
    assert (first["first_step"], first["previous"]) == (0, [])
    monkeypatch.setattr(
        session, "describe_environment", lambda *_: {**describe_environment("cpu"), "source_sha256": "f" * 64}
    )
    stop(tmp_path, 100)
    assert len(caplog.records) == 1
    assert (
        f"resumes at step 50 in another environment: source_sha256 {first['source_sha256'][:12]}… → ffff" in caplog.text
    )
    monkeypatch.undo()
    last = train(tmp_path).read_json("environment.json")
    assert [stretch["first_step"] for stretch in (*last["previous"], last)] == [0, 50, 100]
    assert [each["source_sha256"][:4] for each in last["previous"]] == [first["source_sha256"][:4], "ffff"]
    assert last["source_sha256"] == first["source_sha256"]


def test_the_environment_names_the_kernel(monkeypatch):
    kernel = describe_environment("cpu")["kernel"]
    assert kernel.startswith(("cpu (build ", "reference ("))
    assert "-O3" in kernel or kernel.startswith("reference") or "compiled earlier" in kernel
    monkeypatch.setattr("recombine.attention.cpu.kernels.open_library", lambda: "no C compiler")
    assert describe_environment("cpu")["kernel"] == "reference (no C compiler)"
    monkeypatch.setenv("RECOMBINE_KERNEL", "reference")
    assert describe_environment("cpu")["kernel"] == "reference (RECOMBINE_KERNEL)"


def test_the_hash_of_the_source_covers_headers(tmp_path):
    for name in ("a.py", "b.c", "c.h"):
        (tmp_path / name).write_text("1")
    hashes = [hash_folder(tmp_path)]
    for name in ("a.py", "b.c", "c.h"):
        (tmp_path / name).write_text("2")
        hashes.append(hash_folder(tmp_path))
    assert len(set(hashes)) == 4


def test_an_edited_configuration_is_refused(finished):
    config = finished.read_json("config.json")
    finished.write_json("config.json", {**config, "task": {**config["task"], "seed": 1}})
    with pytest.raises(DamagedError, match="belongs to another run"):
        load_run(finished.path)
    with pytest.raises(InputError, match=r"result\.json belongs to another run"):
        train(finished.path.parent)
    finished.write_json("config.json", {**config, "task": {**config["task"], "seed": "0"}})
    with pytest.raises(InputError, match="seed is '0': expected a whole number"):
        load_run(finished.path)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_training_falls_back_to_the_checkpoint_before(tmp_path, damage, caplog):
    expected = train(tmp_path / "expected").load_checkpoint()[0]
    run = stop(tmp_path / "damaged", 100)
    damage(run.path / "checkpoint.safetensors")
    assert run.load_checkpoint(fall_back=True)[1]["step"] == 50
    resumed = train(tmp_path / "damaged")
    actual = resumed.load_checkpoint()[0]
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    assert not (resumed.path / "checkpoint-previous.safetensors").exists()
