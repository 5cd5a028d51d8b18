"""The file of hashes is current: every pinned version but torch has one, and everything that is needed is pinned."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock(monkeypatch, tmp_path) -> Any:
    """`packaging/lock_hashes.py`, with copies of the two files."""
    specification = importlib.util.spec_from_file_location("lock_hashes", ROOT / "packaging" / "lock_hashes.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name in ("LOCK", "CONSTRAINTS"):
        copy = tmp_path / getattr(module, name).name
        copy.write_bytes(getattr(module, name).read_bytes())
        monkeypatch.setattr(module, name, copy)
    return module


def test_the_files_agree(lock):
    assert lock.find_faults() == []
    assert len(lock.read_versions(lock.LOCK)) > 100


CHANGES = [
    ("CONSTRAINTS", "numpy==", "numpy==0.", "numpy is "),
    ("CONSTRAINTS", "markupsafe==", "unmarked==", "unmarked has no hash in requirements.lock"),
    ("CONSTRAINTS", "markupsafe==", "unmarked==", "markupsafe, a dependency of the package, is not in constraints.txt"),
    ("LOCK", "numpy==", "other==", "numpy has no hash in requirements.lock"),
    ("LOCK", "numpy==", "other==", "other is not in constraints.txt"),
    ("LOCK", "anyio==", "torch==", "torch must not have a hash"),
]


@pytest.mark.parametrize(("file", "old", "new", "fault"), CHANGES)
def test_what_does_not_agree_is_named(lock, file, old, new, fault):
    path = getattr(lock, file)
    text = path.read_text()
    assert text.lower().count(old) == 1
    at = text.lower().index(old)
    path.write_text(text[:at] + new + text[at + len(old) :])
    assert any(line.startswith(fault) for line in lock.find_faults())


def test_a_hash_that_is_missing_is_named(lock):
    text = lock.LOCK.read_text()
    before, _, after = text.partition("    --hash=sha256:")
    lock.LOCK.write_text(before + after)
    assert any("is listed without a hash" in line for line in lock.find_faults())
