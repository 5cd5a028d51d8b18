"""What a power failure could take, a clock that jumps, and the same bits run after run.

A power failure cannot be had in a test. What it may take is known, though: everything that was not synced. So the operations
of a training are recorded, and their order is checked.
"""

import os
import time
from dataclasses import replace

import pytest
import torch

from faults import record
from recombine.foundation import files
from small_runs import FAMILIES, check_often, final_state, train


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
def test_every_rename_is_synced_before_and_after(tmp_path, monkeypatch):
    operations: list[tuple[str, str]] = []  # in order; of a file that is synced, the name that it has then
    fsync, rename = os.fsync, os.replace

    def record_fsync(descriptor):
        operations.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def record_rename(source, target):
        operations.append(("rename", f"{os.path.basename(source)} {os.path.basename(target)}"))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_rename)
    check_often(monkeypatch)
    run = train(FAMILIES["hyperteacher"], tmp_path)
    renames = [number for number, (kind, _) in enumerate(operations) if kind == "rename"]
    assert len(renames) > 30
    for number in renames:
        source, target = operations[number][1].split()
        if target != "checkpoint-previous.safetensors":  # a second name of a file that is synced already
            assert operations[number - 1] == ("fsync", source)
            assert operations[number + 1] == ("fsync", run.path.name)
        if target == "checkpoint.safetensors":
            assert ("fsync", "metrics.jsonl") in operations[:number][-6:], "rows before a checkpoint must outlive it"
    record("power failure", "renames", tried=len(renames))


@pytest.mark.parametrize(("number", "raises"), [(22, False), (5, True)])
def test_file_systems_that_cannot_sync_folders(number, raises, tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    if raises:
        with pytest.raises(OSError, match="Input/output"):
            files.sync_directory(tmp_path)
    else:
        files.sync_directory(tmp_path)


def test_a_wall_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    steady = final_state(train(FAMILIES["hyperteacher"], tmp_path / "steady"))
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (-1) ** next(jumps))
    run = train(FAMILIES["hyperteacher"], tmp_path / "jumping")
    assert final_state(run) == steady
    assert run.read_json("result.json")["seconds"] >= 0
    record("jumping clock", "run", tried=1)


SLOW = ("language", "sraven")


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FAMILIES]
)
def test_the_same_configuration_gives_the_same_bits_and_another_seed_gives_others(family, num_threads, tmp_path):
    config = FAMILIES[family]
    other = replace(config, task=replace(config.task, seed=1))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        states = [
            final_state(train(each, tmp_path / str(number))) for number, each in enumerate((config, config, other))
        ]
    finally:
        torch.set_num_threads(before)
    assert states[0] == states[1]
    assert states[0]["tensors"] != states[2]["tensors"]
    assert states[0]["split"] != states[2]["split"]
