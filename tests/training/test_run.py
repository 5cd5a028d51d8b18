"""Runs: finished once, resumed bit for bit, stopped by NaN, traced."""

import time
from dataclasses import replace

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig, TrainingConfig, default_run
from recombine.training.directory import RunDirectory
from recombine.training.run import choose_intervals, fit, train_run
from recombine.training.score import describe_effort
from recombine.training.session import use_threads
from recombine.training.trainer import Clock, DivergedError, Trainer

CONFIG = RunConfig(
    task=FuzzyLogic(num_examples=8),
    model=TransformerConfig(embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4),
    training=TrainingConfig(steps=120, batch_size=16, warmup_steps=5),
)


def train(config: RunConfig, out, **options) -> RunDirectory:
    return train_run(config, out=out, evaluation_instances=200, **options)


def checkpoint_bytes(run: RunDirectory) -> dict[str, torch.Tensor]:
    return run.load_checkpoint()[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs"))


def test_a_run_leaves_everything_that_is_needed(finished):
    names = {path.name for path in finished.path.iterdir()} - {"lock"}
    assert names == {
        "config.json",
        "split.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "checkpoint.json",
        "result.json",
    }
    result = finished.read_json("result.json")
    assert result["task"] == "fuzzy_logic"
    assert result["label"] == "hyla"
    assert result["split_sha256"] == CONFIG.task.split.certificate.sha256
    assert result["steps"] == 120
    assert result["seconds"] > 0
    assert set(result["scores"]) == {"test", "ood", "unknown"}
    assert set(result["scores"]["ood"]["r2"]) == {"value", "low", "high", "chance", "ceiling", "agnostic"}
    assert finished.read_json("split.json")["certificate"]["sha256"] == result["split_sha256"]
    assert [row["step"] for row in finished.read_metrics()] == list(range(10, 121, 10))


def test_a_finished_run_is_not_run_again(finished):
    before = finished.read_json("result.json")
    again = train(CONFIG, finished.path.parent, watch=lambda _: pytest.fail("it trained again"))
    assert again.path == finished.path
    assert again.read_json("result.json") == before


def test_a_run_loads_with_its_trained_parameters(finished):
    run, config, model = load_run(finished.path)
    assert config == CONFIG
    assert run.path == finished.path
    stored = checkpoint_bytes(finished)
    assert all(torch.equal(value, stored[f"model/{name}"]) for name, value in model.state_dict().items())
    # the published release saved the parameters it started from
    trainer = Trainer(build_model(CONFIG.model, CONFIG.task, seed=0), CONFIG.task, CONFIG.training, "cpu")
    assert not torch.equal(trainer.state()["model/output.weight"], stored["model/output.weight"])


def test_training_learns(finished):
    metrics = finished.read_metrics()
    assert metrics[-1]["loss"] < 0.5 * metrics[0]["loss"]


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("stop_at", [100, 120])
def test_resuming_from_a_checkpoint(finished, tmp_path, stop_at):
    """Stopped after the checkpoint at 100 and after the last one: the optimizer's moments come back too."""

    def interrupt(progress):
        if progress.step >= stop_at:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(CONFIG, tmp_path, watch=interrupt)
    (path,) = tmp_path.iterdir()
    assert RunDirectory.open(path).load_checkpoint()[1]["step"] == stop_at
    steps = []
    resumed = train(CONFIG, tmp_path, watch=lambda progress: steps.append(progress.step))
    assert steps == [step for step in (110, 120) if step > stop_at]
    expected, actual = checkpoint_bytes(finished), checkpoint_bytes(resumed)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_not_a_number_stops_with_the_last_good_checkpoint(tmp_path):
    config = replace(CONFIG, training=replace(CONFIG.training, steps=200))
    broken_at = 75

    class Broken(FuzzyLogic):
        def loss(self, predictions, batch):
            loss = super().loss(predictions, batch)
            return loss * float("nan") if trainer.step == broken_at else loss

    run = RunDirectory.create(tmp_path, "broken", config.as_dict())
    model = build_model(config.model, config.task, seed=0)
    trainer = Trainer(model, Broken(num_examples=8), config.training, "cpu")
    with pytest.raises(
        DivergedError, match=r"training diverged before step 80: .* is not finite; try a lower learning rate"
    ):
        fit(trainer, choose_intervals(200), run=run, clock=Clock())
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    tensors, info = checkpoint
    assert info["step"] == 50
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


@pytest.mark.parametrize("field", ["gradient_clip", "precision"])
def test_options_change_training(tmp_path, field):
    value = {"gradient_clip": 1e-3, "precision": "bf16"}[field]
    short = replace(CONFIG.training, steps=5)
    plain, changed = (
        train(replace(CONFIG, training=training), tmp_path) for training in (short, replace(short, **{field: value}))
    )
    tensors = checkpoint_bytes(changed)
    assert not torch.equal(tensors["model/embed.weight"], checkpoint_bytes(plain)["model/embed.weight"])
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["task"].update(name="chess"), "task 'chess' is not part of this package"),
        (lambda c: c["model"].update(kind="tree"), "model 'tree' is not part of this package"),
        (lambda c: c["training"].update(momentum=1), "unknown field of TrainingConfig 'momentum'"),
        (lambda c: c.pop("training"), "lacks or misshapes 'training'"),
        (lambda c: c.update(task=3), "lacks or misshapes"),
    ],
)
def test_foreign_configurations(change, message):
    config = CONFIG.as_dict()
    change(config)
    with pytest.raises(InputError, match=message):
        RunConfig.from_dict(config)


def test_a_checkpoint_of_another_model(finished, tmp_path):
    narrower = replace(CONFIG, model=TransformerConfig(embedding_dim=16, kqv_dim=8, mlp_dim=8, num_heads=4))
    run = RunDirectory.create(tmp_path, "x", narrower.as_dict())
    run.save_checkpoint(*finished.load_checkpoint())
    with pytest.raises(InputError, match="does not fit the model: size mismatch"):
        load_run(run.path)


def test_speed_leaves_the_warm_up_out():
    clock = Clock()
    time.sleep(0.05)
    clock.add(10, warm=False)
    time.sleep(0.01)
    clock.add(10, warm=True)
    assert clock.seconds > 0.06
    assert clock.steps_per_second > 10 / 0.05


@pytest.mark.slow
def test_compiled_training_is_the_same_up_to_rounding(tmp_path, unchecked):
    torch._dynamo.reset()
    config = replace(CONFIG, training=replace(CONFIG.training, steps=20))
    eager, compiled = (train(config, tmp_path / str(compile), compile=compile) for compile in (False, True))
    losses = [[row["loss"] for row in run.read_metrics()] for run in (eager, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_too_many_recompilations_are_an_error_not_a_slow_run(unchecked):
    torch._dynamo.reset()
    model = build_model(CONFIG.model, CONFIG.task, seed=0)
    trainer = Trainer(model, CONFIG.task, CONFIG.training, "cpu", compile=True)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # torch 2.6
    with torch._dynamo.config.patch({limit: 1}), torch.inference_mode():
        trainer.forward(CONFIG.task.sample("train", 0, batch_size=2).inputs)
        with pytest.raises(Exception, match=r"limit reached|fullgraph=True"):
            trainer.forward(CONFIG.task.sample("train", 0, batch_size=3).inputs)


@pytest.mark.parametrize(("threads", "operations", "expected"), [(None, 1e7, 1), (None, 1e9, 2), (2, 1e7, 2)])
def test_small_models_train_on_one_thread(threads, operations, expected, monkeypatch):
    counts = [2]
    monkeypatch.setattr("torch.get_num_threads", lambda: counts[-1])
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    with use_threads(threads, operations):
        assert counts[-1] == expected
    assert counts[-1] == 2


def test_a_reduced_run_says_so(finished):
    """Its share of the paper's steps, and whether trained compositions are fitted."""
    config, result = CONFIG, finished.read_json("result.json")
    metric = next(iter(result["scores"]["test"]))
    paper = default_run(type(config.task), "paper").training.steps
    for value, notes in ((0.1, 2), (0.99, 1)):
        result["scores"]["test"][metric] |= {"value": value, "chance": 0.0, "ceiling": 1.0}
        said = describe_effort(config, result)
        assert len(said) == notes
        assert f"of the paper's {paper:,} steps" in said[0]
    long = replace(config, training=replace(config.training, steps=paper))
    assert describe_effort(long, result) == []
