"""One training in several processes: the same run up to rounding, resumable with another number, and no silent hang."""

import signal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parallel_cases import CONFIGS, start_processes, train
from recombine.attention.definition import Dropout
from recombine.attention.dispatch import attend, use_kernel
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.tasks import TASKS
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory
from recombine.training.processes import (
    LostProcessError,
    ProcessGroup,
    find_reason,
)
from recombine.training.run import train_run
from recombine.training.session import join_group, num_processes
from recombine.training.trainer import SINGLE_PROCESS

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    return {name: train(name, out) for name in CONFIGS}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The same runs by two processes, one of them sharded as well; then an error, and one process is killed."""
    out = tmp_path_factory.mktemp("together")
    processes = start_processes(out)
    errors = [process.communicate(timeout=900)[1] for process in processes]
    return SimpleNamespace(out=out, codes=[process.returncode for process in processes], errors=errors)


def compare(ours: RunDirectory, theirs: RunDirectory) -> None:
    """The same run up to float32 rounding: rows, scores, parameters and moments."""
    rows, expected = ours.read_metrics(), theirs.read_metrics()
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=2e-5)
    tensors, expected_tensors = ours.load_checkpoint()[0], theirs.load_checkpoint()[0]
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        say = partial("{}: {}".format, name)
        torch.testing.assert_close(tensor, expected_tensors[name], rtol=2e-3, atol=2e-5, msg=say)


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_train_the_run_of_one(alone, together, name):
    ours = RunDirectory.open(together.out / alone[name].path.name)  # the same hash
    compare(ours, alone[name])
    assert ours.read_json("environment.json")["num_processes"] == 2
    assert ours.read_json("result.json")["num_parameters"] == alone[name].read_json("result.json")["num_parameters"]


def test_a_sharded_model_trains_the_same_run(alone, together):
    ours = RunDirectory.open(together.out / "sharded" / alone["fuzzy_logic"].path.name)
    compare(ours, alone["fuzzy_logic"])
    scores, expected = (run.read_json("result.json")["scores"]["ood"]["r2"] for run in (ours, alone["fuzzy_logic"]))
    assert scores["value"] == pytest.approx(expected["value"], rel=1e-3)
    assert scores["ceiling"] == expected["ceiling"]


def test_a_lost_process_is_named_and_the_run_goes_on_alone(alone, together):
    assert together.codes == [-signal.SIGKILL, 1], together.errors
    message = together.errors[1].splitlines()[-1]
    assert message.startswith("recombine: process 0 of 2: another process of this training ended or does not answer")
    assert message.endswith("run the same command again to go on, with any number of processes")
    (path,) = (together.out / "lost").iterdir()
    assert not (path / "result.json").exists()
    compare(train("fuzzy_logic", together.out / "lost"), alone["fuzzy_logic"])


def test_an_error_is_reported_once_and_no_process_waits(together):
    follower, leader = together.errors
    assert follower == "exit code 2\n"
    report, code = leader.splitlines()[:2]
    assert report.startswith("recombine: cannot write to ")
    assert code == "exit code 2"


def test_losses_of_parts_average_to_the_loss_of_the_batch():
    """With their weights, for every task; the parts have different numbers of rows."""
    for name in TASKS:
        task = default_run(name, "tiny").task
        batch = task.sample("train", 0, batch_size=6)
        parts = [task.sample("train", 0, batch_size=6, rows=rows) for rows in (range(4), range(4, 6))]
        generator = torch.Generator().manual_seed(1)
        predictions = torch.randn(task.chance(batch).shape, generator=generator)
        chunks = [predictions[:4], predictions[4:]]
        if batch.inputs.shape[1] != parts[0].inputs.shape[1] or batch.inputs.shape[1] != parts[1].inputs.shape[1]:
            chunks = [chunk[:, : part.inputs.shape[1]] for chunk, part in zip(chunks, parts, strict=True)]
        weights = torch.tensor([float(task.loss_weight(part)) for part in parts])
        losses = torch.stack([task.loss(chunk, part) for chunk, part in zip(chunks, parts, strict=True)])
        torch.testing.assert_close((losses * weights).sum() / weights.sum(), task.loss(predictions, batch), msg=name)


@pytest.mark.parametrize("form", ["elements", "pairs"])
@pytest.mark.parametrize("kernel", ["reference", "cpu", "chunked"])
def test_dropout_of_some_rows_is_that_of_the_batch(form, kernel):
    q, k, v = torch.randn(3, 5, 6, 2, 4)
    options = {"normalisation": "softmax", "value_network": "linear", "return_codes": False}
    key = torch.tensor(12345)
    with use_kernel(kernel):
        whole, _ = attend(q, k, v, dropout=Dropout(0.4, form, key), **options)
        part, _ = attend(q[3:], k[3:], v[3:], dropout=Dropout(0.4, form, key, first_row=3), **options)
    torch.testing.assert_close(part, whole[3:])


def test_rows_are_shared_out(monkeypatch, unchecked):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    parts: list[Any] = []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        group = ProcessGroup(SimpleNamespace())
        parts += group.rows(8)
        assert group.is_leader == (rank == 0)
    assert parts == list(range(8))
    with pytest.raises(InputError, match="batch_size is 2 with 3 processes: expected at least one row per process"):
        group.rows(2)
    assert SINGLE_PROCESS.rows(8) is None


def test_what_cannot_be_shared_out_is_refused(monkeypatch, capsys, tmp_path):
    with pytest.raises(InputError, match="shard is set with one process: expected several processes"):
        train_run(CONFIGS["hyperteacher"], out=tmp_path, shard=True)
    with pytest.raises(InputError, match="shard is set with compile"):
        train_run(CONFIGS["hyperteacher"], out=tmp_path, shard=True, compile=True)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert num_processes() == 2
    with pytest.raises(InputError, match="device 'mps' cannot train with several processes: expected cpu or cuda"):
        join_group(torch.device("mps"))
    monkeypatch.setenv("RECOMBINE_PROCESS_TIMEOUT", "soon")
    with pytest.raises(InputError, match="RECOMBINE_PROCESS_TIMEOUT is 'soon': expected a whole number"):
        join_group(torch.device("cpu"))
    monkeypatch.setenv("RECOMBINE_PROCESS_TIMEOUT", "1")
    with pytest.raises(InputError, match=r"did not meet at 127\.0\.0\.1:1 within 1 s"):
        join_group(torch.device("cpu"))
    monkeypatch.setenv("RANK", "0")
    assert run_verb(["tasks"]) == 2
    assert "tasks was started by torchrun in several processes: expected one" in capsys.readouterr().err


def test_only_errors_of_an_exchange_are_called_lost_processes():
    reasons = {
        "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1": "connection closed",
        "Timed out waiting 5000ms for recv operation": "no answer within the time limit",
        "Gloo connectFullMesh failed": "connection lost",
        "mat1 and mat2 shapes cannot be multiplied": None,
    }
    assert {text: find_reason(RuntimeError(text)) for text in reasons} == reasons
    with pytest.raises(RuntimeError, match="shapes"), SINGLE_PROCESS.name_lost_process("go on"):
        raise RuntimeError("shapes")
    assert issubclass(LostProcessError, RuntimeError)
