"""What a power failure could take: a rename before its content, a directory entry, rows of metrics. Each is synced first.

A power failure cannot be had in a test. What it may take is known, though: everything that was not synced. So the operations
of a training are recorded, and their order is checked.
"""

import os

import pytest

from recombine.foundation import files
from recovery import record
from small_runs import FAMILIES, check_often, train


@pytest.fixture
def operations(monkeypatch):
    """(operation, file name) in order; of a file that is synced, the name that it has then."""
    recorded: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        recorded.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def record_replace(source, target):
        recorded.append(("rename", f"{os.path.basename(source)} {os.path.basename(target)}"))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return recorded


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
def test_every_rename_is_synced_before_and_after(operations, tmp_path, monkeypatch):
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
            earlier = operations[:number][-6:]
            assert ("fsync", "metrics.jsonl") in earlier, "rows before a checkpoint must outlive it"
    record("power failure", "renames", tried=len(renames))


def test_file_systems_that_cannot_sync_folders(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    files.sync_directory(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        files.sync_directory(tmp_path)


def test_a_wall_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    import time

    from small_runs import final_state

    steady = final_state(train(FAMILIES["hyperteacher"], tmp_path / "steady"))
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (-1) ** next(jumps))
    run = train(FAMILIES["hyperteacher"], tmp_path / "jumping")
    assert final_state(run) == steady
    assert run.read_json("result.json")["seconds"] >= 0
    record("jumping clock", "run", tried=1)
